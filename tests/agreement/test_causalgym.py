"""Ours against numbers of the public CausalGym code with pyvene 0.1.6, on a tiny GPT-NeoX.

`number` has regions of equal length. In `passive` every region ends at another place in the source,
so the public code reads other tokens than it means to, and padding in every second pair: its
numbers are those of `compat="causalgym-2024"`.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast

import mechassay as ma
from helpers.tiny_models import quiet_model
from mechassay.features import DAS, LDA, PCA, DiffInMeans, Directions, Fit, FullVector, KMeans
from mechassay.features.featurizer import PrincipalAxes
from mechassay.features.finder import Finder
from mechassay.gym import CompatBatches, compat_batches, read_causalgym_rows
from mechassay.gym.evaluation import BaseValues
from mechassay.gym.methods import SagaProbe
from mechassay.gym.pairs import GymPairs
from mechassay.interventions.site import Site
from mechassay.models.model import Model, make_model
from mechassay.prompts.interchange_batch import InterchangeBatch

GOLDEN = Path(__file__).parents[1] / "golden"
NAMES = ("base", "src", "base_type", "src_type", "base_label", "src_label")
TASKS = ("number", "passive")


class Reference(NamedTuple):
    """A task's batches as the public code runs them, and its numbers by method and site."""

    model: Model
    plain: dict[str, InterchangeBatch]
    train: CompatBatches
    test: CompatBatches
    types: Tensor
    odds: dict[str, dict[Site, np.ndarray]]
    directions: dict[str, dict[Site, Tensor]]
    starts: dict[Site, Tensor]
    steps: int


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return json.loads((GOLDEN / "causalgym.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model(golden: dict[str, Any]) -> Model:
    hf = quiet_model(GPTNeoXForCausalLM, GPTNeoXConfig(**golden["config"]))
    tensors = load_file(GOLDEN / "causalgym.safetensors")
    weights = {name[6:]: x for name, x in tensors.items() if name.startswith("model.")}
    # What transformers calls it on disk, and in memory.
    head = next(name for name in hf.state_dict() if name in ("lm_head.weight", "embed_out.weight"))
    hf.load_state_dict(
        {head if name == "embed_out.weight" else name: x for name, x in weights.items()}
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(golden["tokenizer"])),
        bos_token="<|endoftext|>",
    )
    return make_model(hf.double(), tokenizer, prepend=(0,))


@pytest.fixture(scope="module", params=TASKS)
def reference(
    request: pytest.FixtureRequest,
    golden: dict[str, Any],
    model: Model,
    tmp_path_factory: pytest.TempPathFactory,
) -> Reference:
    task = golden["tasks"][request.param]
    pairs: dict[str, GymPairs] = {}
    for split in ("train", "test"):
        path = tmp_path_factory.mktemp("golden") / f"{split}.json"
        rows = [
            {"task": request.param, **dict(zip(NAMES, row, strict=True))} for row in task[split]
        ]
        path.write_text(json.dumps(rows), encoding="utf-8")
        pairs[split] = read_causalgym_rows(path)[request.param]
    regions = pairs["train"].tested
    begin = len(task["spans"]) - len(regions)
    odds: dict[str, dict[Site, np.ndarray]] = {}
    directions: dict[str, dict[Site, Tensor]] = {}
    starts: dict[Site, Tensor] = {}
    for name, found in load_file(GOLDEN / "causalgym.safetensors").items():
        of, *parts = name.split(".")
        if of != request.param:
            continue
        _, what, method, layer, span = parts
        site = Site(int(layer), regions[int(span) - begin])
        if what == "start":
            starts[site] = found.double()
        elif what == "odds":
            odds.setdefault(method, {})[site] = found.double().numpy()
        else:
            directions.setdefault(method, {})[site] = found.double()
    batches = {split: each.batch(model) for split, each in pairs.items()}
    mixed = {split: compat_batches(each) for split, each in batches.items()}
    order = list(task["types"])
    types = torch.tensor([order.index(pair.tags["type"]) for pair in pairs["train"]])
    return Reference(
        model,
        batches,
        mixed["train"],
        mixed["test"],
        types,
        odds,
        directions,
        starts,
        golden["steps"],
    )


def fit_of(directions: dict[Site, Tensor]) -> Fit:
    return Fit(MappingProxyType({site: Directions(x[:, None]) for site, x in directions.items()}))


def test_what_there_is(reference: Reference) -> None:
    methods = {"das", "mean", "kmeans", "pca", "lda", "random", "probe_0"}
    assert set(reference.directions) == methods
    assert set(reference.odds) == methods | {"vanilla"}
    sites = set(reference.odds["vanilla"])
    assert all(set(of) == sites for of in (*reference.odds.values(), reference.starts))
    # All of it is of a size that can differ.
    assert max(np.abs(each).max() for each in reference.odds["vanilla"].values()) > 0.5


def test_odds_of_the_same_directions(reference: Reference) -> None:
    for method, directions in reference.directions.items():
        ratios = ma.gym.odds(fit_of(directions), reference.test.intervened, model=reference.model)
        for site, theirs in reference.odds[method].items():
            np.testing.assert_allclose(ratios[site], theirs, atol=1e-5, err_msg=f"{method} {site}")


def test_odds_of_whole_vectors(reference: Reference) -> None:
    theirs = reference.odds["vanilla"]
    fit = FullVector().fit(reference.model, reference.test.intervened, list(theirs))
    ratios = ma.gym.odds(fit, reference.test.intervened)
    for site, values in theirs.items():
        np.testing.assert_allclose(ratios[site], values, atol=1e-5, err_msg=str(site))


FINDERS: dict[str, Any] = {
    "mean": DiffInMeans(),
    "pca": PCA(),
    "kmeans": KMeans(),
    "lda": LDA(),
    "probe_0": SagaProbe(l2=1e3),
}


@pytest.mark.parametrize("method", FINDERS)
def test_directions(method: str, reference: Reference) -> None:
    theirs = reference.directions[method]
    values = BaseValues.of(reference.model, reference.train.fitted, tuple(theirs), reference.types)
    fit, lacking = values.fit(FINDERS[method])
    for site, direction in theirs.items():
        assert site not in lacking, lacking[site]
        found: Any = fit.featurizers[site]
        ours = (found.axes if isinstance(found, PrincipalAxes) else found.vectors)[:, 0].double()
        cosine = torch.nn.functional.cosine_similarity(ours, direction, dim=0).abs()
        assert 1 - float(cosine) < 1e-6, f"{site}: {float(cosine)}"


def test_das_walks_the_same_path(reference: Reference) -> None:
    theirs = reference.directions["das"]
    das: Finder = DAS.profile("causalgym-2024", steps=reference.steps)
    fit = das.fit(reference.model, reference.train.intervened, list(theirs), init=reference.starts)
    for site, direction in theirs.items():
        found: Any = fit.featurizers[site]
        ours, begin = found.vectors[:, 0].double(), reference.starts[site][:, 0]
        torch.testing.assert_close(ours, direction, atol=1e-4, rtol=0, msg=str(site))
        if site.layer == 0:
            assert float((direction - begin).abs().max()) > 0.01


def test_the_mix_up_matters_where_lengths_differ(reference: Reference) -> None:
    theirs = reference.directions["mean"]
    ratios = ma.gym.odds(fit_of(theirs), reference.plain["test"], model=reference.model)
    apart = max(np.abs(ratios[site] - reference.odds["mean"][site]).max() for site in theirs)
    shifted = ma.gym.region_lengths(reference.plain["test"]).share > 0
    assert (apart > 0.1) if shifted else (apart < 1e-5)
