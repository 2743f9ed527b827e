"""The model in which a result was found, against the model in which it is measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import mechassay as ma
from helpers.tiny_models import with_words
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods.random import Random
from mechassay.circuits.series import CircuitSeries
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.errors import BadFile, BadUsage
from mechassay.models.model import Model
from mechassay.models.origin import accepted, found_in, origin_in, origin_of, origin_text
from mechassay.utils.display import SILENT


def model(seed: int = 0, dtype: torch.dtype = torch.float32) -> Model:
    hf, tokenizer = with_words(seed=seed)
    return ma.load_model(hf.to(dtype), tokenizer=tokenizer)


def test_equal_content_is_the_same_model(tmp_path: Path) -> None:
    one = model()
    about = origin_of(one)
    assert found_in("scores s", about, one) == {} == found_in("scores s", about, model())
    one.hf.save_pretrained(tmp_path / "other-name")
    one.tokenizer.save_pretrained(tmp_path / "other-name")  # pyright: ignore[reportOptionalMemberAccess]
    for dtype in ("float32", "float64", "bfloat16"):
        again = ma.load_model(str(tmp_path / "other-name"), dtype=dtype)
        assert found_in("scores s", about, again) == {}, "equal but for rounding"
    half = ma.load_model(str(tmp_path / "other-name"), dtype="float16")
    assert found_in("scores s", about, half) == {"scores s": ""}, "float16 rounds to other values"


def test_other_weights_and_other_configurations_are_refused() -> None:
    one, other = model(), model(1)
    about = origin_of(one)
    refused = r"scores s: found in .* which has other weights than .*--transfer"
    with pytest.raises(BadUsage, match=refused):
        found_in("scores s", about, other)
    (there,) = found_in("scores s", about, other, transfer=True).values()
    assert there == origin_text(about) == f"{one.name} (weights {one.identity.weights[:8]})"
    changed = model()
    changed.hf.config.rms_norm_eps = 0.5
    with pytest.raises(BadUsage, match="another configuration"):
        found_in("scores s", about, changed)
    assert found_in("scores s", accepted(about), other) == {"scores s": ""}


LACKING = (
    *(None, {}, [], "abc", 5, {"weights": 3}),
    {"weights": "a", "rounded": "b", "dtype": "float32"},
    {"weights": "", "rounded": "", "dtype": "", "config": ""},
)


@pytest.mark.parametrize("digests", LACKING)
def test_digests_that_are_none(digests: Any) -> None:
    for about in ({"model": "x", "identity": digests}, {"identity": digests}, {}):
        assert found_in("scores s", about, model()) == {"scores s": ""}


def test_changes_in_memory_are_another_model() -> None:
    one = model()
    about = origin_of(one)
    with torch.no_grad():
        next(one.hf.parameters()).mul_(1.1)
    with pytest.raises(BadUsage, match="other weights"):
        found_in("scores s", about, one)
    two = model()
    two.hf.lm_head.weight = torch.nn.Parameter(two.hf.lm_head.weight * 2)
    with pytest.raises(BadUsage, match="other weights"):
        found_in("scores s", about, two)


def test_scores_circuits_and_curves_keep_their_model(tmp_path: Path) -> None:
    one, other = model(), model(1)
    pairs = ma.load_task("ioi").pairs("test", one, limit=6)
    scores = ma.load_method("eap").score(one, pairs, progress=SILENT)
    assert origin_in(scores.provenance) == origin_of(one)
    scores.save(tmp_path / "s.safetensors")
    scores = ma.load_scores(tmp_path / "s.safetensors")
    node_scores = ma.load_method("nap").score(one, pairs, progress=SILENT)
    made = [scores.top(20), scores.greedy(20), scores.mixture(20, 0.5), node_scores.within(0.2)]
    for circuit in (*made, *(circuit.pruned() for circuit in made)):
        circuit.save(tmp_path / "c.safetensors")
        again = Circuit.load(tmp_path / "c.safetensors")
        assert again == circuit and again.provenance == origin_of(one)
        with pytest.raises(BadUsage, match="found in"):
            ma.circuits.evaluate(other, again, pairs, progress=SILENT)
        ma.circuits.evaluate(other, again, pairs, transfer=True, progress=SILENT)
        ma.circuits.evaluate(one, again, pairs, progress=SILENT)
    assert (made[0] & made[1]).provenance == origin_of(one)
    assert (made[0] | Circuit.full(one.graph)).provenance == {}
    with pytest.raises(BadUsage, match="found in"):
        ma.circuits.faithfulness_curve(other, scores, pairs, progress=SILENT)
    about: dict[str, Any] = {"progress": SILENT}
    curve = ma.circuits.faithfulness_curve(other, scores, pairs, transfer=True, **about)
    assert curve.identity == other.identity.as_dict() and curve.model == other.name
    assert curve.found_in == {"scores eap": origin_text(origin_of(one))}
    record = curve.record()
    assert record.found_in == curve.found_in
    assert record.identities["model"]["weights"] == other.identity.weights
    curve.save(tmp_path / "curve.safetensors")
    loaded = ma.circuits.FaithfulnessCurve.load(tmp_path / "curve.safetensors")
    assert (loaded.identity, loaded.found_in) == (curve.identity, curve.found_in)
    assert not ma.circuits.faithfulness_curve(one, scores, pairs, **about).found_in
    unknown = Random(seed=0).draw(one.graph)
    assert ma.circuits.faithfulness_curve(one, unknown, pairs, **about).found_in == {
        "scores random": ""
    }


def test_a_replaced_parameter_is_noticed_though_its_memory_is_used_again() -> None:
    one = model()
    layer = one.hf.lm_head
    shape = layer.weight.shape
    before = {one.known_identity.weights}
    for seed in range(10):
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        layer.weight = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
        layer.weight = torch.nn.Parameter(values, requires_grad=False)
        assert one.known_identity.weights == one.identity.weights not in before
        before.add(one.identity.weights)


def test_folders_of_circuits_are_transferred_with_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (0, 1):
        hf, tokenizer = with_words(seed=number)
        for part in (hf, tokenizer):
            part.save_pretrained(f"seed{number}")
    one = ma.load_model("seed0")
    scores = replace(Random(seed=0).draw(one.graph), provenance=origin_of(one))
    for size in (5, 20, 40):
        scores.top(size).save(f"series/{size}.safetensors")
    scores.top(20).save("known.safetensors")
    experiment = CircuitsExperiment(
        ("seed1",),
        ("ioi",),
        scores=("series",),
        known="known.safetensors",
        metrics=("completeness:size=20", "minimality:size=20"),
        train_limit=8,
        limit=8,
        random_rankings=5,
    )
    with pytest.raises(BadUsage, match=r"scores series: found in seed0 \(weights \w{8}\)"):
        ma.run(experiment, progress=SILENT)
    report = ma.run(replace(experiment, transfer=True), progress=SILENT)
    assert not report.failures
    (record,) = report.records
    assert record.measure("completeness@20") is not None or len(record.measures) > 5
    assert set(record.found_in) == {"scores series", "known circuit known.safetensors"}
    assert [text.partition(" of ")[0] for text in report.transfers] == [
        "The scores series",
        "The known circuit known.safetensors",
    ]


def test_circuits_of_a_folder_are_of_one_model(tmp_path: Path) -> None:
    one, other = model(), model(1)
    for number, own in enumerate((one, one, other)):
        scores = Random(seed=number).draw(own.graph)
        circuit = Circuit(own.graph, scores.top(20).edges, provenance=origin_of(own))
        circuit.save(tmp_path / f"{number}.safetensors")
        if number == 1:
            assert origin_in(CircuitSeries.load(tmp_path).provenance) == origin_of(one)
    with pytest.raises(BadFile, match="circuits of several models"):
        CircuitSeries.load(tmp_path)
