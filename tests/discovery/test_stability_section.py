"""What a run and its page say of how circuits depend on the training pairs."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mechassay.circuits.evaluation.faithfulness import faithfulness_curve
from mechassay.circuits.methods.eap import EAPIGInputs
from mechassay.circuits.methods.mask_learning import UniformGradientSampling
from mechassay.circuits.methods.stability import RESAMPLES, STABILITY, PartScores, score_in_parts
from mechassay.circuits.scores import EdgeScores
from mechassay.discovery.conclusion import conclude, stable_at
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.discovery.stability_section import resamples_sections, stability_sections
from mechassay.errors import BadUsage
from mechassay.models.model import load_model
from mechassay.results.page import Report, TextTable
from mechassay.results.records import Record
from mechassay.results.verdict import Case
from mechassay.runs.run import run
from mechassay.tasks import load_task
from mechassay.utils.display import SILENT

TRUTH = "truth-ioi-trained"
JOB = CircuitsExperiment(
    (TRUTH,),
    methods=("eap-ig-inputs:steps=3", "acdc:threshold=0.1"),
    train_limit=24,
    limit=20,
    metrics=("recovery",),
    random_rankings=5,
    resamples=8,
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return run(JOB, tmp_path_factory.mktemp("run"), progress=SILENT)


def table_of(record: Record) -> TextTable:
    (section,) = stability_sections([record])
    (table,) = section.blocks
    assert isinstance(table, TextTable)
    return table


def test_the_record_has_what_the_parts_say(results: Report) -> None:
    record, acdc = results.records
    model = load_model(TRUTH)
    train = load_task(TRUTH).pairs("train", model, limit=24)
    parts = score_in_parts(EAPIGInputs(steps=3), model, train, progress=SILENT)
    table = record.table(STABILITY)
    again = parts.stability().table()
    assert str(table.rows()) == str(again.rows()) and len(table) == 18
    assert not acdc.has_table(STABILITY) and stability_sections([acdc]) == []


def said(record: Record, fraction: float) -> str:
    """The sentence on a size; empty if there is none."""
    return "".join(case.text({}) for case in stable_at(record, fraction))


def test_sentences_say_how_many_edges_hold_beside_edges_without_an_effect(
    results: Report,
) -> None:
    record = results.records[0]
    (row,) = record.table(STABILITY).where(ranking="magnitude", fraction=0.05).rows()
    text = said(record, 0.05)
    assert f"Of the 13 edges of the circuit, before pruning, {row['n_stable']} (" in text
    assert "the halves of the 24 training pairs" in text
    # The first sentences are on the smallest circuit.
    (chosen,) = record.table("smallest circuit").where(of="result").rows()
    assert said(record, float(str(chosen["fraction"]))) in conclude([record]).lines
    assert said(record, 0.001) == ""  # No edge has this size.
    assert said(results.records[1], 0.05) == ""
    rows = table_of(record).rows
    assert rows[0].cells[:3] == ("eap-ig-inputs steps=3", "0.5\u00a0%", "1")


def test_no_more_than_edges_without_an_effect_is_said(results: Report) -> None:
    record = results.records[0]
    table = record.table(STABILITY)

    def case(**columns: list[float]) -> Case:
        own = table.model_copy(update={"columns": {**table.columns, **columns}})
        return stable_at(record.changed(tables=[own]), 0.05)[0]

    n = len(table)
    assert case(stable_random_signs=[1.0] * n).name == "no more than signs"
    assert case(stable_random_signs=[0.0] * n).name == "some"
    every = case(n_stable=table.columns["size"])  # pyright: ignore[reportArgumentType]
    assert every.name == "all" and "other edges" not in every.text({})


def test_resamples_are_curves_of_their_own(results: Report) -> None:
    for record in results.records:
        table = record.table(RESAMPLES)
        assert list(table.columns) == ["resample", "cpr", "cmd", "cma", "auroc"]
        assert len(table) == 8
        for name in ("cpr", "cmd", "cma"):
            own, method = record.measure(name), record.measure(name, "method")
            assert own is not None and method is not None and method.value == own.value
            if not np.isnan(method.low):
                assert method.high - method.low > own.high - own.low
            # No interval leaves what the area can be.
            assert name == "cpr" or not method.low < 0
            assert name != "cma" or not method.high > 1
    (section,) = resamples_sections(results.records)
    (shown,) = section.blocks
    assert isinstance(shown, TextTable) and len(shown.rows) == 8
    assert len(str(shown.rows[0].cells[4]).split()) == 8


def test_drawings_dash_the_edges_that_depend_on_the_pairs(results: Report) -> None:
    record = results.records[0]
    scores = EdgeScores.load(next((results.folder / "scores").rglob("eap*.safetensors")))
    file = next((results.folder / "kept").rglob("eap*.parts.safetensors"))
    parts = PartScores.load(file, scores)
    circuit = scores.top(40, by="magnitude")
    stable = parts.stable(40)
    drawing = circuit.draw(scores, stable=stable, least=0.0)
    n_contingent = int((circuit.edges & ~stable).sum())
    assert n_contingent > 0 and f"Dashed are {n_contingent:,}" in drawing.about
    # Every dashed line, and the one in the legend.
    assert drawing.svg.count('stroke-dasharray="6 3"') == n_contingent + 1
    assert 'stroke-dasharray="6 3"' not in circuit.draw(scores, least=0.0).svg
    assert "All 1 drawn are in at least" in (
        scores.top(1, by="magnitude").draw(scores, stable=parts.stable(40)).about
    )
    assert record.method.name in drawing.title or drawing.title == "circuit"


@pytest.mark.slow
def test_a_killed_run_keeps_its_resamples(tmp_path: Path) -> None:
    experiment = replace(JOB, methods=("eap",), resamples=2)
    run(experiment, tmp_path, progress=SILENT)
    (record,) = (tmp_path / "records").rglob("*.json")
    first = json.loads(record.read_text("utf-8"))
    files = sorted((tmp_path / "kept").rglob("*.resample-*.json"))
    assert len(files) == 2
    kept = json.loads(files[0].read_text("utf-8"))
    files[0].write_text(json.dumps({**kept, "cpr": 0.123}), encoding="utf-8")
    record.unlink()
    again = run(experiment, tmp_path, progress=SILENT).records[0].table(RESAMPLES)
    assert again.numbers("cpr")[0] == 0.123
    (table,) = (table for table in first["tables"] if table["name"] == RESAMPLES)
    assert again.numbers("cpr")[1] == table["columns"]["cpr"][1]


class TestConstructions:
    @pytest.mark.parametrize("construction", ["rank", "sign", "ratio"])
    @pytest.mark.few(1)
    def test_circuits_are_those_of_the_ordered_scores(
        self, tmp_path: Path, construction: str
    ) -> None:
        experiment = replace(
            JOB, methods=("eap",), resamples=0, construction=construction, train_limit=16
        )
        (record,) = run(experiment, tmp_path, progress=SILENT).records
        assert record.task.args["construction"] == construction
        assert not record.has_table(STABILITY)
        scores = EdgeScores.load(next((tmp_path / "scores").rglob("*.safetensors")))
        parts = PartScores.load(next((tmp_path / "kept").rglob("*.parts.safetensors")), scores)
        ordered = parts.ordered(construction)  # type: ignore[arg-type]
        best = set(ordered.top(5, by="magnitude").names())
        # The slow version.
        held = parts.parts * parts.n_pairs[:, None]
        whole = np.abs(held.sum(0)) / parts.n_pairs.sum()
        slow = {
            "sign": np.abs(np.sign(parts.parts).sum(0)) + whole / whole.max() / 2,
            "ratio": np.abs(held.sum(0)) / np.maximum(np.abs(held).sum(0), 1e-30),
        }
        if construction in slow:
            places = np.flatnonzero(scores.scored().flatten().numpy())
            order = places[np.argsort(-slow[construction], kind="stable")[:5]]
            assert best == {scores.place_name(int(place)) for place in order}
        else:
            assert best & set(scores.top(5, by="magnitude").names())

    def test_what_has_no_parts_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(BadUsage, match="needs scores of parts of the pairs.*; got acdc"):
            run(replace(JOB, construction="sign", resamples=0), tmp_path, progress=SILENT)
        eap = replace(JOB, methods=("eap",), construction="rank")
        with pytest.raises(BadUsage, match="the construction rank have no resamples"):
            run(eap, tmp_path, progress=SILENT)


def test_halves_may_be_of_templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pairs of a template are in one half; without templates there is nothing to draw."""
    names = itertools.cycle([f"template {n}" for n in range(12)])
    kind = type(load_task(TRUTH))
    monkeypatch.setattr(kind, "template", lambda self, tags: next(names))
    experiment = replace(JOB, methods=("eap",), over="templates", resamples=2)
    (record,) = run(experiment, tmp_path / "run", progress=SILENT).records
    assert record.task.args["over"] == "templates"
    table = record.table(STABILITY)
    assert set(table.columns["n_parts"]) == {6} and set(table.columns["n_pairs"]) == {24}
    assert "halves of the templates of the 24 training pairs" in said(record, 0.1)
    assert "two halves of the templates of the pairs" in str(stability_sections([record]))
    assert "draws the templates of the training pairs" in str(resamples_sections([record]))
    monkeypatch.undo()
    with pytest.raises(BadUsage, match="of 2 templates or more; the 24 train pairs of .* have 1"):
        run(experiment, tmp_path / "one", progress=SILENT)


OF_SEEDS = replace(JOB, methods=("random", "ugs:steps=4,batch_size=4"), over="seeds", resamples=2)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return run(OF_SEEDS, tmp_path_factory.mktemp("seeds"), progress=SILENT)


class TestSeeds:
    """Runs with other seeds on the same pairs."""

    def test_each_is_the_method_with_another_seed(self, seeds: Report) -> None:
        """What is kept is what the method finds alone, and its areas are those of a run with it."""
        folder = seeds.folder
        model = load_model(TRUTH)
        train = load_task(TRUTH).pairs("train", model, limit=24)
        for number in range(2):
            (file,) = (folder / "kept").rglob(f"ugs*.seed-{number}.safetensors")
            method = UniformGradientSampling(steps=4, batch_size=4, seed=1 + number)
            alone = method.score(model, train, progress=SILENT)
            kept = EdgeScores.load(file)
            assert torch.equal(kept.values.nan_to_num(), alone.values.nan_to_num())
        record = seeds.records[1]
        assert record.task.args["over"] == "seeds"
        table = record.table(RESAMPLES)
        assert list(table.columns) == ["resample", "cpr", "cmd", "cma", "auroc"] and len(table) == 2
        test = load_task(TRUTH).pairs("test", model, limit=20)
        curve = faithfulness_curve(model, kept, test, progress=SILENT)
        assert table.numbers("cma")[1] == pytest.approx(curve.cma, abs=1e-6)

    def test_random_rankings_agree_by_chance(self, seeds: Report) -> None:
        record = seeds.records[0]
        (row,) = record.table(STABILITY).where(ranking="magnitude", fraction=0.5).rows()
        assert row["n_seeds"] == 2 and row["n_pairs"] == 24 and row["jaccard_random_signs"] is None
        assert row["jaccard"] == pytest.approx(row["jaccard_chance"], abs=0.08)
        assert row["stable_chance"] == pytest.approx(0.25, abs=0.01)
        assert row["stable"] == pytest.approx(0.25, abs=0.12)

    def test_the_page_says_what_was_varied(self, seeds: Report) -> None:
        record = seeds.records[1]
        text = said(record, 0.05)
        assert "are found again with at least 95\u00a0% of 2 other seeds; chance leaves" in text
        (section,) = stability_sections(seeds.records)
        assert section.title == "How circuits vary with the seed"
        (shown,) = resamples_sections(seeds.records)
        assert shown.title == "The method with other seeds"
        assert "Each run has another seed" in str(shown) and "draws the" not in str(shown)

    def test_one_other_seed_has_no_interval(self, tmp_path: Path) -> None:
        experiment = replace(OF_SEEDS, methods=("random:seed=3",), resamples=1)
        (record,) = run(experiment, tmp_path, progress=SILENT).records
        assert len(record.table(RESAMPLES)) == 1
        method = record.measure("cma", "method")
        assert method is not None and np.isnan(method.low)
        text = said(record, 0.5)
        assert "of 1 other seed;" in text
        assert "Every method runs 2 times: with 1 other seed too." in experiment.notes()

    def test_what_has_no_seed_is_refused(self, tmp_path: Path) -> None:
        """In one line, with those that have one."""
        wanted = "which edge-pruning, matryoshka, .*ugs have; got eap, acdc threshold=0.1"
        methods = ("ugs", "eap", "acdc:threshold=0.1")
        with pytest.raises(BadUsage, match=wanted):
            run(replace(OF_SEEDS, methods=methods), tmp_path, progress=SILENT)
        with pytest.raises(BadUsage, match="needs --resamples: how many other seeds"):
            run(replace(OF_SEEDS, resamples=0), tmp_path, progress=SILENT)

    def test_a_killed_run_keeps_the_scores_of_its_seeds(self, tmp_path: Path) -> None:
        experiment = replace(OF_SEEDS, methods=("random",))
        run(experiment, tmp_path, progress=SILENT)
        (file,) = (tmp_path / "kept").rglob("random.seed-0.safetensors")
        kept = EdgeScores.load(file)
        replace(kept, values=torch.full_like(kept.values, 0.5)).save(file)
        for done in [*(tmp_path / "records").rglob("*.json")]:
            done.unlink()
        (again,) = run(experiment, tmp_path, progress=SILENT).records
        (row,) = again.table(STABILITY).where(ranking="magnitude", fraction=0.5).rows()
        # Constant scores have no circuit: no edge of the random one is in both.
        assert row["n_stable"] == 0 and row["size"] > 0
