"""From a claim to a verdict, on models whose circuit is known: the answer of the whole system.

The circuit of a claim: by a method, from a file, by its components.
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.tiny_models import with_words
from helpers.two_behaviours import IOI_EDGES, two_behaviours
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.scores import EdgeScores
from mechassay.claims.assay import Assay, Assayed
from mechassay.claims.assay_steps import AssaySettings, AssayStep
from mechassay.claims.claim import Claim, ClaimFile, claims_of
from mechassay.claims.claimed_circuit import circuit_of_components, claimed_circuit
from mechassay.claims.judgments import read_judgments
from mechassay.claims.pages import verdict_line
from mechassay.claims.rubric import claim_score, load_rubric
from mechassay.cli.main import main
from mechassay.errors import BadFile, BadUsage, MissingExtra, UnknownName
from mechassay.models.graph import Graph
from mechassay.models.model import Model
from mechassay.results.reading import read_record
from mechassay.results.records import Record, Spec, provenance
from mechassay.runs.run import opened
from mechassay.truth.ground_truth import load_truth
from mechassay.utils.display import SILENT

RUBRIC = load_rubric()
SMALL = AssaySettings(limit=24, train_limit=24, grid=6)
PREDICTION = {"measure": "circuit", "direction": "above", "threshold": 0.7}
OUTSIDE = tuple(
    f"{writer}->{reader}"
    for writer in ("a0.h1", "m0")
    for reader in ("a1.h2<q>", "a1.h2<v>", "m1", "a2.h0<k>", "a2.h3<q>")
)
"""Edges that carry nothing of IOI."""
EDGES = {
    "true": IOI_EDGES,
    "lacks a head": tuple(edge for edge in IOI_EDGES if "a1.h0" not in edge),
    "coins": (*OUTSIDE, "input->m1", "m1->logits"),
}


def claim(name: str, **about: Any) -> dict[str, Any]:
    """A claim that IOI runs through edges."""
    return {
        "id": name,
        "statement": "IOI runs through these edges.",
        "description_mode": "implementational-connectomic",
        "components": list(EDGES.get(name, IOI_EDGES)),
        "predictions": [PREDICTION],
        **about,
    }


def claims_about(names: list[str], **about: Any) -> ClaimFile:
    return claims_of({"claims": [claim(name, **about) for name in names]})


def assayed(claims: ClaimFile, folder: Path, **about: Any) -> Assayed:
    return Assay(claims, folder, SMALL, progress=SILENT, **about).run()


@dataclass(frozen=True)
class Known:
    """The three claims about the model with two behaviours, assayed."""

    claims: ClaimFile
    folder: Path
    found: Assayed


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
    folder = tmp_path_factory.mktemp("known")
    model, names, fruits = two_behaviours(folder)
    claims = claims_about(list(EDGES), model=str(model), task=str(names), other_task=str(fruits))
    return Known(claims, folder / "assay", assayed(claims, folder / "assay"))


def level(found: Assayed, name: str, dimension: str = "I") -> int:
    return int(found.scored.paper[name].dimensions[dimension])


@pytest.mark.slow
def test_the_true_circuit_one_that_lacks_a_head_and_a_random_one(known: Known) -> None:
    levels = {name: level(known.found, name) for name in EDGES}
    assert levels == {"true": 3, "lacks a head": 1, "coins": 0}
    own = known.found.judgments.claim("true").statuses
    met = ("I1", "I2", "I3", "I5", "C1", "C3", "E1", "E3", "E4", "M3")
    assert {code: own[code] for code in met} == dict.fromkeys(met, "YES")
    # Two of its eleven edges carry the same in every prompt, which no counterfactual shows.
    assert own["C4"] == "NO"
    # All of it rests on records.
    supported = known.found.scored.supported["true"]
    assert supported.dimensions == known.found.scored.paper["true"].dimensions
    lacking = known.found.judgments.claim("lacks a head").statuses
    assert (lacking["I1"], lacking["I2"]) == ("YES", "NO")
    coins = known.found.judgments.claim("coins").statuses
    # Without it the other task stays, as it would without any circuit that does nothing.
    assert (coins["I1"], coins["I2"], coins["I3"]) == ("NO", "NO", "NOT TESTED")
    # V1 alone is left: it names one mode of description.
    assert known.found.scored.paper["coins"].gated_tier == "Proposed"
    assert {code for code, each in coins.items() if each == "YES"} == {"V1"}, coins


@pytest.mark.slow
def test_predictions_are_held_against_the_records(known: Known) -> None:
    outcomes = {name: rows[0].outcome for name, rows in known.found.predictions.items()}
    assert outcomes == {"true": "holds", "lacks a head": "fails", "coins": "fails"}
    assert len(known.found.refuted) == 2
    page = known.found.page.read_text("utf-8")
    lines = {record.cell["claim"]: verdict_line(record) for record in known.found.records}
    assert lines["true"].startswith("Its prediction holds. NO on ")
    for name in ("lacks a head", "coins"):
        assert lines[name].startswith("REFUTED by its own prediction")
    assert all("says what was tested was not checked." in line for line in lines.values())
    assert "REFUTED by its own prediction" in page and "What was run" in page
    # Both of the false ones are Proposed; the page says what tells them apart.
    assert "Claims that end as Proposed: the criteria that differ" in page


@pytest.mark.slow
def test_what_is_done_is_not_run_again_and_a_deleted_record_is_not_tested(
    known: Known, tmp_path: Path
) -> None:
    from mechassay.claims.dossier import link

    said: list[str] = []
    again = Assay(known.claims, known.folder, SMALL, progress=SILENT)
    found = again.run(say=said.append)
    assert said and all("done before" in text for text in said)
    statuses = found.judgments.claim("true").statuses
    assert statuses == known.found.judgments.claim("true").statuses
    folder = tmp_path / "assay"
    shutil.copytree(known.folder, folder)
    held = ClaimFile(claims=tuple(part.claim for part in again.parts))
    for name, codes in {"other-task": ("I3", "C3", "E3"), "own": ("C4",)}.items():
        shutil.rmtree(folder / "true" / name / "records")
        left = link(held, folder).claim("true").statuses
        assert {left[code] for code in codes} == {"NOT TESTED"}
        assert all(left[code] in (statuses[code], "NOT TESTED", "PARTIAL") for code in left)


@pytest.mark.slow
def test_more_records_never_lower_a_score(known: Known, tmp_path: Path) -> None:
    """The folders of the steps are put into one after another, in either order."""
    from mechassay.claims.dossier import link

    held = ClaimFile(
        claims=tuple(part.claim for part in Assay(known.claims, known.folder, SMALL).parts)
    )
    folders = sorted(each.parent for each in (known.folder / "true").glob("*/records"))
    assert len(folders) >= 5
    for number, order in enumerate((folders, folders[::-1])):
        runs = tmp_path / str(number)
        scores = [0.0]
        for folder in order:
            shutil.copytree(folder, runs / "true" / folder.name)
            statuses = link(held, runs).claim("true").statuses
            scores.append(claim_score(RUBRIC, statuses).cvs)
        assert scores == sorted(scores) and scores[-1] > scores[1]


@pytest.mark.slow
def test_on_truth_ioi_specificity_stays_open_as_it_has_no_second_behaviour(tmp_path: Path) -> None:
    claims = claims_about(["true"], model="truth-ioi", task="truth-ioi")
    found = assayed(claims, tmp_path)
    own = found.judgments.claims[0].statuses
    assert level(found, "true") == 2 and own["I3"] == "NOT TESTED"
    # Where edges that a claim names were found is not known, so no split is held out.
    assert (own["M3"], own["I4"], own["E5"]) == ("YES", "YES", "PARTIAL")
    # No method found these edges, so none is tried where the answer is known.
    assert own["M4"] == own["M5"] == "NOT TESTED"
    assert not found.failed


def test_the_plan_is_printed_with_its_cost_and_nothing_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = claim("true", model="truth-ioi", task="truth-ioi", circuit="eap@9", components=[])
    (tmp_path / "claim.json").write_text(json.dumps(plain))
    words = ["assay", str(tmp_path / "claim.json"), "-o", str(tmp_path / "runs"), "--dry-run"]
    with pytest.raises(SystemExit) as done:
        main(words)
    assert done.value.code == 0 and not (tmp_path / "runs").exists()
    told = capsys.readouterr().out
    assert "own: mechassay circuits run --model truth-ioi" in told
    assert "runs of a pair" in told and "minutes" in told


def test_steps_are_those_that_the_claim_allows(tmp_path: Path) -> None:
    def names(**about: Any) -> list[str]:
        plain = claim("a", model="truth-ioi", task="truth-ioi", components=[], circuit="eap@9")
        settings = replace(SMALL, other_method=about.pop("other_method", ""))
        plan = Assay(claims_of({**plain, **about}), tmp_path, settings)
        assert all(step.command.startswith("mechassay ") for step in plan.steps)
        assert all(step.forwards > 0 and step.criteria for step in plan.steps)
        return [step.name for step in plan.steps]

    always = ["own", "mean", "validation", "another-seed", "untrained"]
    assert names() == [*always, "truth", "adversarial", "graded", "composition"]
    assert "counterfactual" in names(ablation="mean")
    more = names(other_task="truth-induction", other_model="gemma3-270m", other_method="exact")
    assert {"other-task", "other-family", "convergence"} <= set(more)


def test_another_model_has_another_untrained_copy(tmp_path: Path) -> None:
    plain = claim("a", model="truth-ioi", task="truth-ioi", components=[], circuit="eap@9")
    claims = claims_of({**plain, "untrained": "untrained:mine"})
    own = Assay(claims, tmp_path).parts[0].claim
    other = Assay(claims, tmp_path, model="truth-induction").parts[0].claim
    assert own.untrained_copy == "untrained:mine"
    assert other.untrained_copy == "untrained:truth-induction"


EDITED = {
    "a larger circuit": ({"circuit": "eap@10"}, {}),
    "another ablation": ({"ablation": "mean"}, {}),
    "more pairs": ({}, {"limit": 14}),
    "another seed": ({}, {"seed": 3}),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("edit", EDITED)
@pytest.mark.parametrize("done", [False, True], ids=["begun", "done"])
def test_a_folder_of_another_claim_is_refused_before_anything_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edit: str, done: bool
) -> None:
    """The first claim's first step has a record, as if it had been begun, or done."""
    plain = claim("a", model="truth-ioi", task="truth-ioi", components=[], circuit="eap@9")
    small = replace(SMALL, limit=12, train_limit=12)
    first = Assay(claims_of(plain), tmp_path, small, progress=SILENT).steps[0]
    opened(first.experiment, first.folder, progress=SILENT)
    specs = {name: Spec(name="truth-ioi") for name in ("model", "task", "method")}
    made = provenance(device="cpu", dtype="float32", seed=0)
    held = Record(kind="circuits", specs=specs, measures=[], provenance=made)
    held.save(first.folder / "records" / "truth-ioi.json")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(AssayStep, "is_done", done)
    about, settings = EDITED[edit]
    edited = Assay(
        claims_of({**plain, **about}), tmp_path, replace(small, **settings), progress=SILENT
    )
    with pytest.raises(BadUsage, match="holds a run with"):
        edited.run()
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_an_edited_claim_is_not_given_the_verdict_of_the_old_one(tmp_path: Path) -> None:
    plain = claim("a", model="truth-ioi", task="truth-ioi", components=[], circuit="eap@9")
    small = replace(SMALL, limit=12, train_limit=12)
    folder = tmp_path / "assay"
    Assay(claims_of(plain), folder, small, progress=SILENT).run()
    for other, settings in (
        ({**plain, "circuit": "eap@10"}, small),
        ({**plain, "circuit": "exact@9"}, small),
        (plain, replace(small, limit=14)),
        (plain, replace(small, seed=3)),
    ):
        with pytest.raises(BadUsage, match="holds a run with"):
            Assay(claims_of(other), folder, settings, progress=SILENT).run()


def test_claims_that_cannot_be_run(tmp_path: Path) -> None:
    plain = {"id": "a", "statement": "x", "model": "truth-ioi", "task": "truth-ioi"}
    for about, message in (
        ({"task": ""}, "names no task to run"),
        ({}, "names neither a circuit"),
        ({"circuit": "eap@9:greedy"}, "grows from the logits"),
    ):
        with pytest.raises(BadUsage, match=message):
            _ = Assay(claims_of({**plain, **about}), tmp_path).steps
    for limit in (1, 99_999_999):
        with pytest.raises(BadUsage, match=f"limit must be between 2 and 100,000; got {limit:,}"):
            AssaySettings(limit=limit)


@pytest.mark.slow
def test_the_command_with_a_method_and_a_reader(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = {"circuit": "eap-ig-inputs@9", "components": []}
    plain = claim("a", model="truth-ioi", task="truth-ioi", **about)
    (tmp_path / "claim.json").write_text(json.dumps(plain))
    words = ["assay", str(tmp_path / "claim.json"), "-o", str(tmp_path / "runs")]
    words += ["--limit", "20", "--train-limit", "20", "--grid", "6"]
    with pytest.raises(SystemExit) as done:
        main(words)
    assert done.value.code == 0
    told = capsys.readouterr().out
    assert (
        "a predicts circuit above 0.7: holds" in told and "a: Its prediction holds. NO on " in told
    )
    runs = tmp_path / "runs"
    judged = read_judgments(runs / "judgments.json").claims[0]
    assert judged.statuses["I2"] == judged.statuses["M5"] == judged.statuses["C1"] == "YES"
    assert judged.statuses["M4"] in ("YES", "PARTIAL", "NO") and judged.statuses["V4"] != "YES"
    assert read_record(runs / "score.json").value("cvs") > 0
    assert "V4" in (runs / "form.html").read_text("utf-8")
    page = (runs / "report.html").read_text("utf-8")
    assert page.count("were not recomputed, as the records hold no values of single examples") == 1
    # A reader's judgments of the rest; other settings are refused.
    form = json.loads((runs / "judgments.json").read_text())
    form["claims"][0]["criteria"]["V3"] = {"status": "YES", "reason": "It fits."}
    (tmp_path / "ann.json").write_text(json.dumps(form))
    with pytest.raises(SystemExit) as done:
        main([*words, "--judgments", str(tmp_path / "ann.json")])
    assert done.value.code == 0
    assert read_judgments(runs / "judgments.json").claims[0].statuses["V3"] == "YES"
    with pytest.raises(SystemExit) as done:
        main([*words, "--limit", "21"])
    assert done.value.code == 2 and "holds a run with" in capsys.readouterr().err


def claimed_circuit_claim(**about: Any) -> Claim:
    return Claim(id="a", statement="x", model="truth-ioi", task="truth-ioi", **about)


def never() -> Model:
    raise AssertionError("the model is not needed")


def test_a_method_stays_what_it_is(tmp_path: Path) -> None:
    found = claimed_circuit(
        claimed_circuit_claim(circuit="eap:backward=gim@9"), tmp_path / "a.safetensors", never
    )
    assert found.by_method and found.claim.circuit == "eap:backward=gim@9"
    assert (found.claim.ranking, found.claim.size) == ("eap:backward=gim", "9")


def test_scores_of_a_file_are_cut_where_they_are(tmp_path: Path) -> None:
    graph = Graph(3, 4)
    EdgeScores.of(graph, graph.legal.float()).save(tmp_path / "mine.safetensors")
    about = claimed_circuit_claim(circuit=f"{tmp_path / 'mine.safetensors'}@9")
    found = claimed_circuit(about, tmp_path / "a.safetensors", never)
    assert not found.by_method and found.claim.circuit == "mine@9"
    assert found.claim.scores == str(tmp_path / "mine.safetensors")


def test_edges_are_written_as_scores_that_are_cut_to_them(tmp_path: Path) -> None:
    truth = load_truth("truth-ioi")
    graph, file = truth.model.graph, tmp_path / "a.safetensors"
    for about in (
        claimed_circuit_claim(circuit="truth"),
        claimed_circuit_claim(components=tuple(truth.circuits["counterfactual"].names())),
    ):
        file.unlink(missing_ok=True)
        found = claimed_circuit(about, file, lambda: truth.model)
        assert not found.by_method and found.claim.circuit == "a@9"
        scores = EdgeScores.load(file, graph)
        assert scores.top(9, by="magnitude") == truth.circuits["counterfactual"]
        # Once it is there, the model is not needed.
        assert claimed_circuit(about, file, never).claim == found.claim


def test_a_file_of_another_claim_or_an_edited_one_is_refused(tmp_path: Path) -> None:
    truth = load_truth("truth-ioi")
    names, file = truth.circuits["counterfactual"].names(), tmp_path / "a.safetensors"
    own = claimed_circuit_claim(components=tuple(names))
    claimed_circuit(own, file, lambda: truth.model)
    for other, changed in (
        (claimed_circuit_claim(components=tuple(names[1:])), "components"),
        (claimed_circuit_claim(circuit="truth"), "circuit"),
        (own.model_copy(update={"ablation": "mean"}), "ablation"),
    ):
        with pytest.raises(BadUsage, match=f"circuit of another claim.*{changed}"):
            claimed_circuit(other, file, lambda: truth.model)
    graph = truth.model.graph
    EdgeScores.of(graph, graph.legal.float()).save(file)
    with pytest.raises(BadFile, match="was edited"):
        claimed_circuit(own, file, never)


def test_a_node_brings_its_edges_and_those_out_of_the_input() -> None:
    graph = Graph(2, 2)
    assert set(circuit_of_components(graph, ("input->a0.h1<v>",))) == {"input->a0.h1<v>"}
    found = circuit_of_components(graph, ("a1.h0",))
    mask = torch.zeros(graph.n_writers, dtype=torch.bool)
    mask[[0, graph.head(1, 0)]] = True
    assert found == Circuit.of_nodes(graph, mask)
    assert len(found.pruned()) and "a1.h0->logits" in found
    with pytest.raises(UnknownName, match=r"a9\.h9"):
        circuit_of_components(graph, ("a9.h9",))


def test_what_is_no_circuit(tmp_path: Path) -> None:
    for about, message in (
        (claimed_circuit_claim(), "names neither a circuit"),
        (claimed_circuit_claim(circuit="eap@9:greedy"), "grows from the logits"),
        (claimed_circuit_claim(circuit="empty"), "without edges"),
    ):
        with pytest.raises(BadUsage, match=message):
            claimed_circuit(
                about, tmp_path / "a.safetensors", lambda: load_truth("truth-ioi").model
            )


@pytest.mark.slow
def test_a_folder_may_be_renamed(known: Known, tmp_path: Path) -> None:
    """Plans name the scores of their folder by their path; nothing is run again."""
    moved = tmp_path / "renamed"
    shutil.copytree(known.folder, moved)
    said: list[str] = []
    found = Assay(known.claims, moved, SMALL, progress=SILENT).run(say=said.append)
    assert said and all("done before" in text for text in said)
    for name in EDGES:
        before, after = (each.judgments.claim(name).statuses for each in (known.found, found))
        assert before == after


def test_a_missing_package_is_named_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    plain = claim("a", model="truth-ioi", task="truth-ioi", components=[], circuit="eap@9")
    with pytest.raises(MissingExtra, match="pyarrow"):
        Assay(claims_of(plain), tmp_path / "runs", SMALL, progress=SILENT).run()
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_the_whole_model_is_called_so_and_a_failed_step_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A circuit of all 262 edges, in an assay whose weights cannot be compared."""

    def fails(*_: object, **__: object) -> None:
        raise BadUsage("no heads to compare")

    monkeypatch.setattr("mechassay.measurement.metrics.k_composition.KComposition.measure", fails)
    nodes = ["input", *(f"a{i}.h{j}" for i in range(3) for j in range(4)), "m0", "m1", "m2"]
    plain = claim("all", model="truth-ioi", task="truth-ioi", components=nodes)
    small = replace(SMALL, limit=20, train_limit=20, grid=4, left_out=2)
    found = Assay(claims_of(plain), tmp_path, small, progress=SILENT).run()
    (record,) = found.records
    assert verdict_line(record).startswith("The circuit is the whole model. ")
    (line,) = (text for text in record.warnings if "left no record" in text)
    assert line.startswith("The step composition left no record: ") and "no heads" in line
    assert "The step composition left no record" in found.page.read_text("utf-8")
    # What the records warn of stands on top, once for all steps.
    (told,) = (text for text in record.warnings if text.endswith(")") and " (in " in text)
    assert told.endswith("(in own, mean, validation, another-seed)")


@pytest.mark.guard
def test_a_retrained_model_leads_to_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that do not depend on the model are copied; the earlier folder stays and is resumed."""
    monkeypatch.chdir(tmp_path)
    models = [with_words(seed=seed) for seed in (0, 1)]

    def save(number: int) -> None:
        for part in models[number]:
            part.save_pretrained("mine")

    plain = {
        "id": "c1",
        "statement": "In mine, IOI runs through 20 edges.",
        "description_mode": "implementational-connectomic",
        "families": ["causal"],
        "system": True,
        "model": "./mine",
        "task": "ioi",
        "circuit": "eap@20",
    }
    claims, small = claims_of(plain), AssaySettings(4, 4, 4, 4)

    def run() -> tuple[Assay, str, list[str]]:
        assay, note = Assay.resumed(claims, "claim", small, progress=SILENT)
        steps: list[str] = []
        assay.run(say=steps.append)
        return assay, note, [step.split()[1] for step in steps if "done before" in step]

    save(0)
    first, note, done = run()
    assert not note and not done
    again, _, done = run()
    assert again.folder == first.folder and {"own:", "own"} & set(done)
    save(1)
    second, note, done = run()
    assert second.folder == Path(f"{first.folder}-2") and note.startswith("mine has other weights")
    assert done == ["truth"]
    with pytest.raises(BadUsage, match=r"mine has other weights than on .*--output"):
        Assay(claims, first.folder, small, progress=SILENT).run()
    save(0)
    assert Assay.resumed(claims, "claim", small, progress=SILENT)[0].folder == first.folder
