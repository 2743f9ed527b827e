"""Methods by name, with their published settings, and the finders that only the sweeps have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA as ScikitPCA
from sklearn.linear_model import LogisticRegression

from helpers.planted_gym import planted_model, planted_task
from mechassay.errors import BadUsage, UnknownName
from mechassay.features import DAS, PCA, Fit, Probe
from mechassay.features.finder import Found
from mechassay.gym import METHODS, SWEEPS
from mechassay.gym.methods import (
    PENALTIES,
    AveragedAxes,
    SagaProbe,
    StoppedDAS,
    gym_method,
    spelled_methods,
)
from mechassay.gym.names import in_words, is_control, shuffled_of, with_shuffled
from mechassay.interventions.site import Site
from mechassay.utils.display import SILENT


def values(n: int = 60, d: int = 12, gap: float = 1.0) -> Found:
    generator = torch.Generator().manual_seed(0)
    classes = torch.arange(n) % 2
    x = torch.randn(n, d, generator=generator).double()
    x[:, 0] += gap * (2 * classes - 1)
    return Found(Site(0), x, None, classes)


def direction(found: Any) -> torch.Tensor:
    return Fit({Site(0): found}).directions(Site(0))[:, 0]


def test_published_settings() -> None:
    (das,) = gym_method("das", 512).candidates.values()
    assert das == DAS(k=1, lr=5e-3, steps=100, batch_size=4, schedule="linear", warmup=0.1)
    (wide,) = gym_method("das:k=4,lr=0.01", 512).candidates.values()
    assert wide == DAS(k=4, lr=1e-2, steps=100, batch_size=4, schedule="linear", warmup=0.1)
    assert dict(gym_method("probe", 512).candidates) == {"l2=1000": Probe(l2=1e3)}
    assert list(gym_method("probe-saga", 2048).candidates) == ["l2=100000", "l2=1e+06"]
    assert list(gym_method("probe", 896).candidates) == ["l2=10000", "l2=100000"]
    assert list(gym_method("probe:l2=5", 2048).candidates.values()) == [Probe(l2=5.0)]
    assert [gym_method(name, 64).seeded for name in METHODS] == [
        name in ("das", "random") or name.endswith("-shuffled") for name in METHODS
    ]
    assert sorted(PENALTIES) == list(PENALTIES) and all(map(sorted, PENALTIES.values()))


def test_what_reads_labels_has_a_control_on_shuffled_ones() -> None:
    assert [shuffled_of(name) for name in ("das:k=4", "lda", "probe:l2=1,fit=2")] == [
        "das-shuffled:k=4",
        "lda-shuffled",
        "probe-shuffled:l2=1,fit=2",
    ]
    without = ("pca", "k-means", "random", "vanilla", "mean-shuffled", *SWEEPS["table-2a"])
    assert not any(map(shuffled_of, without))
    assert with_shuffled(("mean", "pca", "mean-shuffled")) == ("mean", "pca", "mean-shuffled")
    assert list(filter(is_control, METHODS)) == list(METHODS[6:])
    names = ("das:k=4", "mean-shuffled", "vanilla", "mine")
    assert [in_words(name) for name in names] == [
        "DAS (k=4)",
        "difference of means, shuffled labels",
        "whole vector",
        "mine",
    ]


def test_sweeps_are_those_of_table_2() -> None:
    assert [len(each) for each in SWEEPS.values()] == [22, 5, 15]
    for text in spelled_methods(("table-2a", "table-2b", "table-2c", "mean", "mean")):
        assert gym_method(text, 128).candidates
    assert len(spelled_methods(tuple(SWEEPS))) == 42
    (probe,) = gym_method(SWEEPS["table-2a"][0], 128).candidates.values()
    assert isinstance(probe, SagaProbe) and probe.penalty == "none" and not probe.intercept


def test_wrong_names() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'k-means'"):
        gym_method("kmean", 64)
    with pytest.raises(BadUsage, match="Name a method"):
        spelled_methods(())
    with pytest.raises(UnknownName, match="penalty of a probe"):
        SagaProbe(penalty="l3")
    with pytest.raises(BadUsage, match="stops after 1 to 100 steps"):
        StoppedDAS(stop=101).plan(8)


def test_the_saga_probe_is_scikit_learns() -> None:
    found = values()
    own = direction(SagaProbe(l2=10.0).find(found))
    probe = LogisticRegression(C=0.1, solver="saga", max_iter=1000, random_state=0)
    probe.fit(found.base.float().numpy(), found.classes.numpy())
    theirs = torch.from_numpy(probe.coef_[0]).double()
    assert abs(float(own @ theirs / theirs.norm())) > 1 - 1e-6
    # With values of one size and a strong penalty the solver comes to the optimum.
    assert abs(float(own @ direction(Probe(l2=10.0).find(found)))) > 0.999
    with pytest.raises(BadUsage, match="leaves no weight"):
        SagaProbe(l2=1e6, penalty="l1").find(found)
    assert abs(float(direction(SagaProbe(penalty="none").find(found))[0])) > 0.5


def test_averaged_axes_are_scikit_learns() -> None:
    found = values()
    (first,) = (direction(each.find(found)) for each in (AveragedAxes(1),))
    assert abs(float(first @ direction(PCA().find(found)))) > 1 - 1e-9
    mean = ScikitPCA(3).fit(found.base.numpy()).components_.mean(axis=0)
    own = direction(AveragedAxes(3).find(found)).numpy()
    np.testing.assert_allclose(own, mean / np.linalg.norm(mean), atol=1e-9)


def test_a_strong_penalty_gives_the_difference_of_means() -> None:
    found = values()
    means = [found.base[found.classes == c].mean(dim=0) for c in (0, 1)]
    gap = means[1] - means[0]
    probe = direction(Probe(l2=1e5).find(found))
    assert float(probe @ gap / gap.norm()) > 0.9999


def test_das_stopped_is_das_so_far() -> None:
    model = planted_model()
    batch = planted_task().interchanges("train", model, limit=40).batch(model)
    how: dict[str, Any] = {**DAS.profiles["causalgym-2024"], "steps": 12, "lr": 0.05}
    sites = ["resid.0@noun", "resid.1@time"]
    whole = DAS(**how).fit(model, batch, sites, progress=SILENT)
    for stop in (1, 5, 12):
        part = StoppedDAS(**how, stop=stop).fit(model, batch, sites, progress=SILENT)
        # Losses before each step are those of the same path.
        np.testing.assert_allclose(part.losses, whole.losses[:stop], atol=1e-12)
    for site in sites:
        same = part.directions(site)[:, 0] @ whole.directions(site)[:, 0]  # pyright: ignore[reportPossiblyUnboundVariable]
        assert abs(float(same)) > 1 - 1e-9
