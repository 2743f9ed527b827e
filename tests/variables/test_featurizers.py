"""Settings of the featurizers, by profile and task; paper and code differ (MIB, appendix G)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

import mechassay as ma
from mechassay.errors import BadUsage, UnknownName
from mechassay.features.dbm import DBM
from mechassay.features.sae import SAE
from mechassay.utils.display import SILENT
from mechassay.variables.featurizers import (
    FeaturizerSettings,
    featurizer_settings,
    fit_featurizer,
    n_features_of,
)
from mechassay.variables.options import FEATURIZERS, PROFILES

LLAMA, GEMMA, GPT2 = "llama", "gemma2", "gpt2"


@pytest.mark.parametrize(
    ("task", "family", "paper", "code"),
    [
        ("mcqa", "qwen2", (8, 64), (8, 64)),
        ("arc-easy", GEMMA, (2, 48), (2, 48)),
        ("arc-challenge", LLAMA, (1, 16), (2, 48)),
        ("arithmetic-addition", LLAMA, (1, 256), (1, 256)),
        ("ravel", LLAMA, (1, 128), (1, 48)),
        ("ravel", GEMMA, (1, 32), (1, 128)),
        ("ioi", GPT2, (1, 256), (2, 1024)),
        ("ioi", GEMMA, (1, 256), (2, 256)),
    ],
)
def test_profiles_are_those_of_paper_and_code(
    task: str, family: str, paper: tuple[int, int], code: tuple[int, int]
) -> None:
    for profile, (epochs, size) in (("paper", paper), ("mib-2025", code)):
        found = featurizer_settings(profile, task, family)
        assert (found.epochs, found.batch_size) == (epochs, size)
        assert found.lr == (1.0 if task == "ioi" else 0.01)
        assert found.loss == ("squared-error" if task == "ioi" else "cross-entropy")
        assert found.choose_on == "test" and found.shuffle and found.least_steps == 1
        assert found.cooling == ("mib-2025" if profile == "mib-2025" else "full")
        assert featurizer_settings("strict", task, family).choose_on == "validation"


@pytest.mark.parametrize(
    ("task", "variable", "width", "k"),
    [
        ("mcqa", "answer_pointer", 896, 16),
        ("mcqa", "answer", 896, 448),
        ("arc-easy", "answer_pointer", 2304, 16),
        ("arc-easy", "answer", 4096, 2048),
        ("arithmetic-addition", "carry", 2304, 16),
        ("ravel", "Country", 2304, 288),
        ("ravel", "Language", 4096, 512),
        ("ioi", "subject_token", 64, 32),
    ],
)
def test_sizes_of_das_are_those_of_paper_and_code(
    task: str, variable: str, width: int, k: int
) -> None:
    for profile in ("paper", "mib-2025"):
        assert n_features_of(profile, task, variable, width) == (k,)


@pytest.mark.parametrize("width", [1, 2, 3, 8, 48, 127, 128, 129, 896])
@pytest.mark.parametrize("profile", PROFILES)
def test_sizes_fit_the_width_and_none_is_there_twice(profile: str, width: int) -> None:
    for task in ("ioi", "mcqa", "ravel", "truth-ioi"):
        found = n_features_of(profile, task, "answer", width)
        assert found and len(set(found)) == len(found) and list(found) == sorted(found)
        assert all(1 <= k <= width for k in found)


def test_strict_chooses_among_two_sizes() -> None:
    assert n_features_of("strict", "mcqa", "answer", 896) == (16, 112)
    assert n_features_of("strict", "truth-ioi", "answer", 48) == (6, 24)


@pytest.mark.parametrize(
    ("settings", "n_rows", "steps"),
    [
        (FeaturizerSettings(epochs=4), 64, 8),
        (FeaturizerSettings(epochs=4), 65, 12),
        (FeaturizerSettings(epochs=4), 5, 4),
        (FeaturizerSettings(epochs=4, least_steps=100), 64, 100),
        (FeaturizerSettings(epochs=4, least_steps=100), 6400, 800),
        (FeaturizerSettings(epochs=4, least_steps=100, steps=3), 64, 3),
    ],
)
def test_steps_by_hand(settings: FeaturizerSettings, n_rows: int, steps: int) -> None:
    assert settings.n_steps(n_rows) == steps


def test_strict_trains_for_a_hundred_steps_at_least() -> None:
    assert featurizer_settings("strict", "mcqa").n_steps(24) == 100


def test_unknown_names_are_one_line() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'paper'"):
        featurizer_settings("papers", "mcqa")
    with pytest.raises(UnknownName, match="profile"):
        n_features_of("mib", "mcqa", "answer", 10)


# --- every featurizer, on a model whose variable is known ---------------------------------------


@pytest.fixture(scope="module")
def known() -> tuple[Any, Any]:
    model = ma.load_model("truth-ioi-trained")
    examples = ma.load_task("truth-ioi").examples("train", limit=12)
    causal = ma.variables.load_causal_model("truth-ioi")
    _, batch = ma.variables.expected_labels(causal, "answer", examples).tokenized(model)
    return model, batch


def identity_sae(width: int) -> SAE:
    """Twice as many features as numbers: their positive and their negative parts."""
    eye = torch.eye(width)
    return SAE(
        torch.cat((eye, -eye), 1), torch.cat((eye, -eye)), *map(torch.zeros, (2 * width, width))
    )


@pytest.mark.parametrize("name", FEATURIZERS)
def test_every_featurizer_finds_the_answer_where_it_is(name: str, known: tuple[Any, Any]) -> None:
    model, batch = known
    sites = ma.sites(model, positions=("last",), layers=(2,))
    how = FeaturizerSettings(epochs=20, lr=0.05)
    saes = {site: identity_sae(48) for site in sites}
    fit = fit_featurizer(model, batch, sites, name, settings=how, k=24, saes=saes, progress=SILENT)
    found = ma.variables.accuracy(fit, batch, controls=(), progress=SILENT)
    assert found.estimate("resid.2@last").value > 0.9
    assert found.estimate("resid.2@last", "no intervention").value == 0


def test_settings_are_those_of_the_finder(known: tuple[Any, Any]) -> None:
    model, batch = known
    sites: Sequence[Any] = ma.sites(model, positions=("last",), layers=(1,))
    how = FeaturizerSettings(0.02, 2, 5, False)
    ours = fit_featurizer(model, batch, sites, "dbm", settings=how, seed=3, progress=SILENT)
    finder = DBM(lr=0.02, steps=6, batch_size=5, optimizer="adamw", shuffle=False, seed=3)
    theirs = finder.fit(model, batch, sites, progress=SILENT)
    assert torch.equal(ours.losses, theirs.losses)
    other = fit_featurizer(
        model, batch, sites, "dbm", settings=replace(how, lr=0.1), seed=3, progress=SILENT
    )
    assert not torch.equal(ours.losses, other.losses)


def test_masks_of_sae_features_need_saes(known: tuple[Any, Any]) -> None:
    model, batch = known
    with pytest.raises(BadUsage, match=r"saes=\{site: SAE\}"):
        fit_featurizer(model, batch, ma.sites(model, positions=("last",)), "dbm+sae")
    with pytest.raises(UnknownName, match="Did you mean 'das'"):
        fit_featurizer(model, batch, ma.sites(model, positions=("last",)), "dass")
