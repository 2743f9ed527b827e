"""What users hold can be copied and sent to other processes."""

from __future__ import annotations

import copy
import pickle
from types import MappingProxyType
from typing import Any

import pytest

import mechassay as ma
from mechassay.utils.display import SILENT
from mechassay.utils.frozen import frozen


@pytest.fixture(scope="module", name="things")
def of_users() -> dict[str, Any]:
    model = ma.load_truth("truth-ioi").model
    task = ma.load_task("truth-ioi")
    pairs = task.pairs("train", model, limit=6)
    scores = ma.load_method("eap").score(model, pairs, progress=SILENT)
    site = ["resid.1@last"]
    return {
        "pair": pairs[0],
        "pairs": pairs,
        "example": task.examples("train", limit=3)[0],
        "examples": task.examples("train", limit=3),
        "batch": model.batch(pairs),
        "interchanges": model.interchanges(pairs),
        "task": task,
        "fit of DAS": ma.features.DAS(k=1, steps=2).fit(model, pairs, site, progress=SILENT),
        "fit of means": ma.features.DiffInMeans().fit(model, pairs, site, progress=SILENT),
        "scores": scores,
        "circuit": scores.top(20),
        "curve": ma.circuits.faithfulness_curve(model, scores, pairs, progress=SILENT),
        "model": model,
    }


@pytest.mark.parametrize(
    "name",
    [
        *("pair", "pairs", "example", "examples", "batch", "interchanges", "task", "fit of DAS"),
        *("fit of means", "scores", "circuit", "curve", "model"),
    ],
)
def test_copies_are_equal(name: str, things: dict[str, Any]) -> None:
    thing = things[name]
    for twin in (copy.deepcopy(thing), pickle.loads(pickle.dumps(thing)), copy.copy(thing)):
        assert type(twin) is type(thing) and repr(twin) == repr(thing)
        for attribute in ("source", "dropped", "alignment", "provenance"):
            if hasattr(thing, attribute):
                assert repr(getattr(twin, attribute)) == repr(getattr(thing, attribute))


def test_a_copy_of_pairs_is_used_as_the_original(things: dict[str, Any]) -> None:
    model = things["model"]
    twin = pickle.loads(pickle.dumps(things["pairs"]))
    assert model.batch(twin).content == model.batch(things["pairs"]).content


def test_a_frozen_mapping_stays_read_only() -> None:
    one = frozen({"a": [1]})
    twin = copy.deepcopy(one)
    assert isinstance(twin, MappingProxyType) and twin == one and twin["a"] is not one["a"]
    with pytest.raises(TypeError):
        twin["b"] = 2  # type: ignore[index]
