"""Given alignments as a run: known answers, worthless features, MIB's folders, IOI.

Causal variables as a run: what its folder holds, how it goes on, and what it refuses.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import mechassay as ma
from helpers.experiments import SMALL_EXPERIMENTS
from helpers.planted import HALF, PlantedIOI, planted_ioi
from helpers.tiny_models import with_words
from mechassay.causal_models.ioi import LogitDifference
from mechassay.causal_models.true_sites import true_sites
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.features.featurizer import Directions, Identity
from mechassay.features.finder import Fit
from mechassay.interventions.site import Site, load_site
from mechassay.leaderboard.cells import cells_of
from mechassay.leaderboard.rules import rules_of
from mechassay.models.model import make_model, untrained
from mechassay.prompts.pairs import Examples
from mechassay.results.page import Report
from mechassay.results.records import Record, page_of
from mechassay.runs.experiment import command_line
from mechassay.runs.options import layers_of
from mechassay.runs.run import run
from mechassay.testing.checks import numbers
from mechassay.utils.display import SILENT
from mechassay.utils.files import folder_hash, read_tensors
from mechassay.variables.alignment import VariableAlignment
from mechassay.variables.experiments import AlignmentsExperiment, VariablesExperiment
from mechassay.variables.mib_submission import mib_parts, validate, write_mib_folder
from mechassay.variables.page import VariablesPage
from mechassay.variables.verdicts import verdict_of

JOB: AlignmentsExperiment = SMALL_EXPERIMENTS["alignments"]
MODEL, TASK = "truth-ioi-trained", "truth-ioi"


def saved(folder: Path, featurizers: dict[str, Any], **changes: Any) -> str:
    """An alignment of the answer in truth-ioi-trained, as a folder."""
    fit = Fit({load_site(site): each for site, each in featurizers.items()})
    about: dict[str, Any] = {"task": TASK, "variable": "answer", "model": MODEL, **changes}
    return str(VariableAlignment(**about, fit=fit).save(folder))


def one(folder: Path, **changes: Any) -> Record:
    """The record of an experiment with one cell."""
    (record,) = run(replace(JOB, **changes), folder, progress=SILENT).records
    return record


def values(record: Record, of: str) -> list[Any]:
    assert record.values is not None
    return list(record.values.columns[of])


def test_given_features_are_measured_as_those_that_a_search_has_found(tmp_path: Path) -> None:
    search = VariablesExperiment(
        (MODEL,),
        variables=("answer",),
        featurizers=("das",),
        layers="2",
        positions=("last",),
        ks=(6,),
        controls=(),
        train_limit=JOB.train_limit,
        validation_limit=JOB.validation_limit,
        limit=JOB.limit,
    )
    results = run(search, tmp_path / "search", progress=SILENT)
    (name, found), *_ = results.by_name.items()
    folder = str(results.folder / "alignments" / name)
    record = one(tmp_path / "given", alignments=(folder,))
    assert (record.kind, found.kind) == ("alignments", "variables")
    assert record.values == found.values and record.data == found.data
    for name in ("iia", "gain", "validation", "log_odds", "kl"):
        assert record.measure(name) == found.measure(name)
    assert record.method.name == "das" and record.method.args["site"] == "resid.2@last"
    assert record.method.args["features_sha256"] == folder_hash(Path(folder))


def test_the_site_is_chosen_on_validation_and_its_features_hold_the_answer(tmp_path: Path) -> None:
    record = one(tmp_path / "run", limit=20)
    assert record.method.args["site"] == "resid.2@last" and verdict_of(record) == "isolated"
    table = record.table("sites")
    assert [row["site"] for row in table.rows()] == ["resid.1@last", "resid.2@last"]
    assert {m.of for m in record.measures if m.name == "iia"} == {
        "result",
        *(f"{kind}:{name}" for kind in ("control", "difference") for name in CONTROLS),
    }


CONTROLS = ("no intervention", "full vector", "random")


def test_no_feature_is_no_intervention_and_all_of_them_are_the_whole_vector(
    tmp_path: Path,
) -> None:
    nothing = saved(tmp_path / "nothing", {"resid.2@last": Directions(torch.zeros(48, 0))})
    whole = saved(tmp_path / "whole", {"resid.2@last": Identity(48)})
    experiment = replace(JOB, alignments=(nothing, whole), limit=20)
    empty, full = run(experiment, tmp_path / "run", progress=SILENT).records
    assert values(empty, "features") == values(empty, "no intervention")
    assert verdict_of(empty) == "not found" and empty.value("gain") == 0
    assert values(full, "features") == values(full, "full vector") == values(full, "random")
    assert values(empty, "no intervention") == values(full, "no intervention")
    # Beside the whole vector at the same site: what exchanges nothing loses, what exchanges all
    # gains nothing.
    lost, none = (record.measure("iia", "difference:full vector") for record in (empty, full))
    assert lost is not None and lost.value == -1 and lost.high < 0
    assert none is not None and none.value == 0 and none.low < 0 < none.high
    assert (empty.value("over_full"), full.value("over_full")) == (-1, 0)


def test_a_basis_that_is_turned_within_its_space_gives_the_same_numbers(tmp_path: Path) -> None:
    def drawn(rows: int, columns: int) -> torch.Tensor:
        normal = torch.randn(rows, columns, generator=torch.Generator().manual_seed(columns))
        return torch.linalg.qr(normal)[0]

    axes = drawn(48, 20)
    first = saved(tmp_path / "first", {"resid.2@last": Directions(axes)})
    turned = saved(tmp_path / "turned", {"resid.2@last": Directions(axes @ drawn(20, 20))})
    one_of, other = run(
        replace(JOB, alignments=(first, turned)), tmp_path / "run", progress=SILENT
    ).records
    assert values(one_of, "features") == values(other, "features")
    odds = [record.measure("log_odds") for record in (one_of, other)]
    assert odds[0] is not None and odds[1] is not None
    assert odds[0].value == pytest.approx(odds[1].value, abs=1e-4)


def test_a_right_and_a_wrong_hypothesis_are_told_by_the_truth(tmp_path: Path) -> None:
    claim = {"variable": "name_place", "causal_model": "truth-ioi by place"}
    wrong = saved(tmp_path / "wrong", {"resid.2@last": Identity(48)}, **claim)
    record = one(tmp_path / "run", alignments=(wrong,), limit=20)
    assert record.specs["variable"].args["hypothesis"] == "wrong"
    assert verdict_of(record) == "not found"


def test_a_cell_of_the_board_is_a_row_with_the_hash_of_its_features(tmp_path: Path) -> None:
    other = saved(tmp_path / "das", {"resid.1@last": Identity(48)})
    first, second = (
        next(iter(cells_of(rules_of("variables"), one(tmp_path / f"run{n}", alignments=folders))))
        for n, folders in enumerate((JOB.alignments, (other,)))
    )
    assert first.row == f"das (file {folder_hash(Path(JOB.alignments[0]))[:8]})"
    assert first.row_in_record == second.row_in_record == "das"
    # Which sites to look at was the submitters' choice: rows of other sites are comparable.
    assert first.under == second.under and first.row != second.row


def test_private_prompts_are_measured_and_not_written(tmp_path: Path) -> None:
    record = one(tmp_path / "run", split="private", private_seed=77_001_122)
    assert record.data["test"].split == "private" and record.data["test"].seed is None
    texts = [
        x.prompt.text
        for x in ma.load_task(TASK).examples("private", limit=8, private_seed=77001122)
    ]
    for path in (tmp_path / "run").rglob("*"):
        said = path.read_bytes() if path.is_file() else b""
        assert b"77001122" not in said and not any(text.encode() in said for text in texts), path


# --- what is refused ------------------------------------------------------------------------------


def test_the_command_is_typed_with_the_folders(tmp_path: Path) -> None:
    text = command_line(replace(JOB, alignments=("a b", "c")), Path("out"))
    assert text.startswith("mechassay variables evaluate 'a b' c --model truth-ioi-trained")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"alignments": ("nowhere",)}, "nowhere: there is no such folder"),
        ({"tasks": ("mcqa",)}, "None of the alignments is about truth-ioi-trained and mcqa"),
        ({"tasks": ("mqca",)}, "Did you mean 'mcqa'"),
        ({"split": "train"}, "split to report on"),
        ({"layers": "first"}, "such as 0,3,6"),
        ({"dtype": "float8"}, "float8"),
        ({"alignments": JOB.alignments * 2}, "are both 'das' for answer of truth-ioi"),
    ],
)
def test_a_plan_that_cannot_be_run_leaves_no_folder(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises((BadUsage, BadFile), match=said) as error:
        run(replace(JOB, **changes), tmp_path / "run", progress=SILENT)
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


def test_a_folder_without_an_alignment_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadFile, match=r"neither alignment\.json nor folders named TASK"):
        run(replace(JOB, alignments=(str(tmp_path / "empty"),)), tmp_path / "run", progress=SILENT)


def test_a_variable_of_another_causal_model_is_refused(tmp_path: Path) -> None:
    other = {"variable": "subject_token", "causal_model": "ioi"}
    folder = saved(tmp_path / "other", {"resid.2@last": Identity(48)}, **other)
    with pytest.raises(BadUsage, match="'subject_token' of the causal model 'ioi' is none of"):
        run(replace(JOB, alignments=(folder,)), tmp_path / "run", progress=SILENT)


def test_an_alignment_of_another_model_fails_alone(tmp_path: Path) -> None:
    small = ma.load_model("truth-previous-token-trained")
    fit = ma.features.FullVector().fit(
        small,
        small.interchanges(ma.load_task("truth-previous-token").pairs("train", small, limit=4)),
        ["resid.0@last"],
    )
    other = VariableAlignment.of(fit, TASK, "answer", method="other").save(tmp_path / "other")
    results = run(
        replace(JOB, alignments=(*JOB.alignments, str(other))), tmp_path / "run", progress=SILENT
    )
    assert len(results.records) == 1
    (failure,) = results.failures
    assert failure.error == "GraphMismatch" and "truth-previous-token-trained" in failure.message


def test_changed_features_are_another_plan(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(JOB.alignments[0], folder)
    experiment = replace(JOB, alignments=(str(folder),))
    first = run(experiment, tmp_path / "run", progress=SILENT)
    assert numbers(run(experiment, tmp_path / "run", progress=SILENT)) == numbers(first)
    told = json.loads((folder / "alignment.json").read_text())
    (folder / "alignment.json").write_text(json.dumps({**told, "method": "dbm"}))
    with pytest.raises(BadUsage, match="has other content than on"):
        run(experiment, tmp_path / "run", progress=SILENT)


def test_a_name_with_markup_is_text_of_one_line(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>\n\x1b[31m../../etc"
    folder = saved(tmp_path / "mine", {"resid.2@last": Identity(48)}, method=name)
    results = run(replace(JOB, alignments=(folder,)), tmp_path / "run", progress=SILENT)
    (record,) = results.records
    assert record.method.name == "<script>alert(1)</script> [31m../../etc"
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<script>alert(1)" not in page and "&lt;script&gt;alert(1)" in page
    assert all(
        (tmp_path / "run").resolve() in file.resolve().parents
        for file in (tmp_path / "run").rglob("*.json")
    )


# --- MIB's folders --------------------------------------------------------------------------------


def mib_submission(folder: Path) -> Path:
    axes = torch.linalg.qr(torch.randn(896, 4, generator=torch.Generator().manual_seed(0))).Q
    wide = torch.linalg.qr(torch.randn(2304, 4, generator=torch.Generator().manual_seed(0))).Q
    sites = [load_site("resid.12@correct_symbol")]
    qwen, gemma = "Qwen/Qwen2.5-0.5B", "google/gemma-2-2b"
    given = [
        VariableAlignment("mcqa", "answer_pointer", qwen, Fit({sites[0]: Directions(axes)})),
        VariableAlignment("mcqa", "answer", gemma, Fit({sites[0]: Directions(wide)})),
    ]
    write_mib_folder(given, folder)
    return folder


def test_of_a_submission_to_mib_those_folders_count_that_are_about_the_model(
    tmp_path: Path,
) -> None:
    folder = mib_submission(tmp_path / "submission")
    assert [part.task for part in mib_parts(folder)] == ["mcqa", "mcqa"]
    experiment = AlignmentsExperiment((str(folder),), "Qwen/Qwen2.5-0.5B")
    (cell,) = experiment.cells()
    assert cell.labels["variable"] == "answer_pointer" and cell.labels["task"] == "mcqa"
    local = tmp_path / "gemma"
    local.mkdir()
    (local / "config.json").write_text('{"architectures": ["Gemma2ForCausalLM"]}')
    (of_gemma,) = replace(experiment, model=str(local)).cells()
    assert of_gemma.labels["variable"] == "answer"
    inside = experiment.given[0].inside
    (alone,) = replace(experiment, alignments=(str(folder / inside),)).given
    assert alone.inside == inside and alone.sha256 == experiment.given[0].sha256
    (read,) = ma.variables.read_mib_folder(folder, only=inside)
    assert read.variable == "answer_pointer"


def test_a_submission_with_code_or_a_link_that_leads_out_is_not_planned(tmp_path: Path) -> None:
    folder = mib_submission(tmp_path / "submission")
    (folder / "4_answer_MCQA_Qwen2ForCausalLM_answer").symlink_to(tmp_path)
    with pytest.raises(BadFile, match="leads out"):
        AlignmentsExperiment((str(folder),), "Qwen/Qwen2.5-0.5B").cells()


# --- IOI: all heads at once -----------------------------------------------------------------------


def test_variables_of_a_logit_difference_are_measured_by_coefficients_that_are_fitted_here(
    tmp_path: Path,
) -> None:
    head = {load_site("heads.1.0@all"): Identity(None)}
    invented = LogitDifference(bias=0.0, position=0.0, token=0.0, r2=1.0, n=0, conditions={})
    honest = VariableAlignment("ioi", "subject_position", "mine", Fit(head, together=True))
    paths = [
        str(replace(honest, method=name, coefficients=given).save(tmp_path / name))
        for name, given in (("plain", None), ("invented", invented))
    ]
    experiment = AlignmentsExperiment(
        tuple(paths), "mine", ("ioi",), layers="1", train_limit=8, validation_limit=6, limit=6
    )
    about: dict[str, Any] = {"models": {"mine": planted_ioi()}, "tasks": {"ioi": PlantedIOI()}}
    results = run(experiment, tmp_path / "run", progress=SILENT, **about)
    assert not results.failures
    plain, other = results.records
    # MIB's evaluator would compare the second with 0, whatever is exchanged.
    assert values(plain, "features") == values(other, "features")
    error, constant = plain.measure("mse"), plain.measure("mse", "control:best constant")
    assert error is not None and constant is not None and error.value < constant.value / 4
    assert values(plain, "features") == values(plain, "full vector")
    assert "1.0" in str(plain.specs["metric"].args["coefficients of"])
    assert (
        VariablesPage().draw(plain).axes
        and "heads were given" in VariablesPage().tables(Report([plain]))[0].caption
    )
    (cell,) = cells_of(rules_of("variables"), plain)
    assert cell.column == "mse" and "coefficients from" in cell.conditions


def test_a_run_is_measured_by_its_own_folder(tmp_path: Path) -> None:
    search = replace(
        SMALL_EXPERIMENTS["variables"], models=(MODEL,), variables=("answer",), layers="2"
    )
    results = run(replace(search, controls=()), tmp_path / "search", progress=SILENT)
    for folder in (tmp_path / "search", tmp_path / "search" / "alignments"):
        assert validate(folder) == []
        experiment = replace(JOB, alignments=(str(folder),))
        again = run(experiment, tmp_path / f"again {folder.name}", progress=SILENT).records
        assert {r.method.name: values(r, "features") for r in again} == {
            r.method.name: values(r, "features") for r in results.records
        }


def test_settings_of_trainings_are_what_is_asked_for(tmp_path: Path) -> None:
    experiment = replace(ONE, controls=(), ks=(3,))
    for changes, steps, lr in (({"steps": 9, "lr": 0.2}, 9, 0.2), ({"epochs": 2}, 2, 0.01)):
        (record,) = run(
            replace(experiment, **changes), tmp_path / f"{steps}", progress=SILENT
        ).records
        assert (record.method.args["steps"], record.method.args["lr"]) == (steps, lr)
        loss, fall = record.measure("training_loss"), record.measure("training_fall")
        assert loss is not None and loss.n == 1 and fall is not None and fall.n == steps


def test_training_at_a_few_sites_is_where_whole_vectors_do_best(tmp_path: Path) -> None:
    """The site and its test accuracy are those of a training everywhere that chose it; a mean of
    the layers that were trained is not reported beside that of all.
    """
    experiment = replace(
        SMALL_EXPERIMENTS["variables"],
        models=("truth-ioi-trained",),
        variables=("answer",),
        controls=(),
        steps=20,
    )
    everywhere, few, many = (
        run(replace(experiment, train_at=n), tmp_path / f"{n}", progress=SILENT).records
        for n in (None, 1, 99)
    )
    whole, das = everywhere
    sites = whole.table("sites").columns
    best = sites["site"][sites["validation"].index(max(sites["validation"]))]
    assert set(few[1].table("sites").columns["site"]) == {best} != set(sites["site"])
    assert few[0].table("sites").columns == sites
    assert few[1].measure("iia_layers") is None and few[0].measure("iia_layers") is not None
    assert few[1].method.args["train_at"] == 1
    assert many[1].measures == das.measures


def test_the_tables_of_a_run_have_the_controls(tmp_path: Path) -> None:
    record = one(tmp_path)
    shown = page_of(AlignmentsExperiment.kind).tables(Report([record]))
    heads = [column.heading for table in shown for column in table.columns]
    assert "no intervention" in heads and "full vector" in heads


ONE = replace(
    SMALL_EXPERIMENTS["variables"],
    models=("truth-ioi-trained",),
    variables=("answer",),
    featurizers=("das",),
    layers="2",
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Right and wrong hypotheses of one ground truth."""
    experiment = replace(SMALL_EXPERIMENTS["variables"], models=("truth-ioi-trained",))
    return run(experiment, tmp_path_factory.mktemp("run") / "all", progress=SILENT)


@pytest.mark.slow
def test_ground_truths_run_on_their_own_tasks_with_right_and_wrong_hypotheses(
    tmp_path: Path,
) -> None:
    results = run(SMALL_EXPERIMENTS["variables"], tmp_path / "run", progress=SILENT)
    assert not results.failures
    told = {
        (record.model.name, record.specs["variable"].name): record.specs["variable"].args
        for record in results.records
    }
    assert {name for name, _ in told} == {"truth-ioi-trained", "truth-previous-token-trained"}
    of_ioi = {name: args["hypothesis"] for (model, name), args in told.items() if "ioi" in model}
    assert of_ioi == {"duplicate": "right", "answer": "right", "name_place": "wrong"}
    assert told["truth-ioi-trained", "name_place"]["causal_model"] == "truth-ioi by place"


def test_what_is_found_is_at_its_home_and_a_wrong_hypothesis_is_not_found(
    results: Report,
) -> None:
    for record in results.records:
        about, gain = record.specs["variable"], record.measure("gain")
        assert gain is not None
        if about.args["hypothesis"] == "wrong":
            assert not gain.low > 0.5
        elif record.method.name == "full-vector":
            home = true_sites(record.model.name, about.name)
            assert record.method.args["site"] in map(str, home)
            assert record.measure("iia").value >= 0.85  # pyright: ignore


def test_a_cell_leaves_its_features_and_says_what_it_ran_on(results: Report) -> None:
    for name, record in results.by_name.items():
        kept = VariableAlignment.load(results.folder / "alignments" / name)
        (site,) = kept.fit.sites
        assert kept.method == record.method.name
        assert str(site) == record.method.args["site"]
        assert list(record.data) == ["train", "validation", "test"]
        for chosen in record.data.values():
            assert chosen.kept > 0 and chosen.counts["label changes"] <= chosen.kept
        assert record.values is not None and len(record.values.ids) == record.data["test"].kept
    assert not list((results.folder / "training").rglob("*.pt")), "trainings are done"


def test_a_folder_grows_by_a_featurizer(tmp_path: Path) -> None:
    one = replace(ONE, steps=8)
    first = run(one, tmp_path / "run", progress=SILENT)
    wider = run(replace(one, featurizers=("das", "dbm")), tmp_path / "run", progress=SILENT)
    assert [record.method.name for record in wider.records] == ["das", "dbm"]
    assert numbers(first).items() <= numbers(wider).items()
    with pytest.raises(BadUsage, match="layers"):
        run(replace(one, layers="1"), tmp_path / "run", progress=SILENT)


def test_private_prompts_are_not_in_what_is_written(tmp_path: Path) -> None:
    experiment = replace(ONE, split="private", private_seed=11)
    results = run(experiment, tmp_path / "run", progress=SILENT)
    assert not results.failures
    task = ma.load_task("truth-ioi")
    examples = task.examples("private", limit=8, private_seed=11)
    texts = [x.prompt.text for x in examples]
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            said = path.read_bytes().decode("utf-8", "replace")
            assert not any(text in said for text in texts), path
    plan = json.loads((tmp_path / "run" / "plan.json").read_text("utf-8"))
    assert plan.get("private_seed") is None
    assert results.records[0].data["test"].split == "private"
    with pytest.raises(BadUsage, match="needs private_seed"):
        run(replace(experiment, private_seed=None), tmp_path / "none", progress=SILENT)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"variables": ("anser",)}, UnknownName, "Did you mean 'answer'"),
        ({"featurizers": ("dass",)}, UnknownName, "Did you mean 'das'"),
        ({"featurizers": ()}, BadUsage, "Name a featurizer"),
        ({"layers": "first"}, BadUsage, r"such as 0,3,6, or a slice such as ::3; got 'first'"),
        ({"layers": ""}, BadUsage, "Layers are all"),
        ({"part": "residual"}, UnknownName, "Did you mean 'resid'"),
        ({"profile": "papers"}, UnknownName, "Did you mean 'paper'"),
        ({"controls": ("random",)}, UnknownName, "random-variable, untrained"),
        ({"steps": 5, "epochs": 2}, BadUsage, "--steps or --epochs; got both"),
        ({"lr": 0.0}, BadUsage, "learning rate is above 0; got 0.0"),
        ({"ks": (4, 0)}, BadUsage, "k is 1 or more; got 0"),
        ({"featurizers": ("dbm+sae",)}, BadUsage, "dbm\\+sae needs --saes"),
        ({"models": ("gpt2",)}, BadUsage, "gpt2 needs a task"),
        ({"split": "train"}, UnknownName, "split to report on"),
        ({"models": ("truth-ioi-traind",)}, UnknownName, "Did you mean 'truth-ioi-trained'"),
    ],
)
def test_a_plan_that_cannot_be_run_leaves_no_folder_of_variables(
    changes: dict[str, Any], error: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        run(replace(ONE, **changes), tmp_path / "run", progress=SILENT)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"positions": ("nowhere",)}, "nowhere"),
        ({"layers": "1,9"}, "9"),
        ({"layers": "5:"}, "Layers 5: are none of the model's, 0 to 2"),
        ({"kinds": ("flip",)}, "flip"),
        ({"ks": (49,)}, "49"),
        (
            {"saes": "nowhere", "featurizers": ("dbm+sae",)},
            "nowhere: there is no such folder, and it is no hub id",
        ),
    ],
)
def test_what_only_the_model_can_refuse_is_one_line(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadUsage) as error:
        run(replace(ONE, **changes), tmp_path / "run", progress=SILENT)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [("all", None), ("0,3", (0, 3)), ("::3", (0, 3, 6)), ("-1,2", (-1, 2)), ("5:", (5, 6, 7))],
)
def test_layers_as_they_are_typed(text: str, found: tuple[int, ...] | None) -> None:
    assert layers_of(text, 8) == found


# --- positions by a rule --------------------------------------------------------------------------


def test_a_position_by_a_rule_is_the_part_that_it_names(tmp_path: Path) -> None:
    """The last name is `subject_2`: the same accuracy, found and given."""
    names = "(?:Ann|Bob|Cid|Dan|Eve|Fay)"
    rule = f"giver=/{names}(?!.*{names})/"
    experiment = replace(
        ONE,
        models=(MODEL,),
        tasks=(),
        variables=("answer",),
        featurizers=("full-vector",),
        layers="0",
    )
    known, ruled = (
        run(replace(experiment, **changes), tmp_path / name, progress=SILENT).records[0]
        for name, changes in (
            ("known", {"positions": ("subject_2",)}),
            ("ruled", {"positions": ("giver",), "position_rules": (rule,)}),
        )
    )
    assert ruled.value("iia") == known.value("iia")
    assert ruled.table("sites").rows()[0]["site"] == "resid.0@giver"
    typed = saved(tmp_path / "given", {"resid.0@giver": Identity(48)})
    given = AlignmentsExperiment((typed,), MODEL, position_rules=(rule,), limit=40, train_limit=40)
    (record,) = run(given, tmp_path / "again", progress=SILENT).records
    typed = saved(tmp_path / "plain", {"resid.0@subject_2": Identity(48)})
    (plain,) = run(
        replace(given, alignments=(typed,), position_rules=()), tmp_path / "own", progress=SILENT
    ).records
    assert record.value("iia") == plain.value("iia")


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (r"giver=/and/", r"matches \d+ times in"),
        (r"giver=/zebra/", "matches 0 times in"),
        (r"giver=/\w+/", r"matches \d+ times in"),
        ("giver=/(,/", "no regular expression"),
        ("giver=/(a)(b)/", "has 2 groups"),
        ("last=/a/", "means a token already"),
        ("giver", "is written NAME=/EXPRESSION/"),
    ],
)
def test_a_rule_that_does_not_fit_is_one_line(rule: str, says: str, tmp_path: Path) -> None:
    experiment = replace(
        ONE, models=(MODEL,), tasks=(), variables=("answer",), position_rules=(rule,)
    )
    with pytest.raises(BadUsage, match=says) as caught:
        run(experiment, tmp_path, progress=SILENT)
    assert "\n" not in str(caught.value)


# --- SAEs -----------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["resid.2@last", "resid.2"])
def test_masks_over_features_of_saes_from_files(name: str, tmp_path: Path) -> None:
    eye = torch.eye(48)
    arrays = {
        "W_enc": torch.cat((eye, -eye), 1),
        "W_dec": torch.cat((eye, -eye)),
        "b_enc": torch.zeros(96),
        "b_dec": torch.zeros(48),
    }
    save_file(arrays, tmp_path / f"{name}.safetensors")
    experiment = replace(ONE, featurizers=("dbm+sae",), saes=str(tmp_path), train_limit=40)
    (record,) = run(experiment, tmp_path / "run", progress=SILENT).records
    chosen = record.table("sites").where(chosen=True).rows()[0]
    assert 0 < chosen["features"] < 96 and record.measure("iia").value > 0.6  # pyright: ignore
    fit = VariableAlignment.load(tmp_path / "run" / "alignments" / record_name(record)).fit
    assert type(fit.featurizer(Site(2, "last"))).__name__ == "SAE"


def record_name(record: Any) -> str:
    return next(cell.name for cell in replace(ONE, featurizers=("dbm+sae",)).cells())


# --- killed and taken up --------------------------------------------------------------------------

SLOW = """
import sys, time
from mechassay.utils import checkpoint
from mechassay.cli.main import main

checkpoint.EVERY_SECONDS = 0.0
pause = float(sys.argv.pop(1))
done = checkpoint.State.done
checkpoint.State.done = lambda state, cursor: (done(state, cursor), time.sleep(pause))[0]
main(sys.argv[1:])
"""


def start(out: Path, pause: float) -> subprocess.Popen[str]:
    words = ["variables", "run", "-m", "truth-ioi-trained", "--variable", "answer"]
    words += ["--featurizer", "das", "--layers", "2", "--position", "last", "--k", "3"]
    words += ["--train-limit", "12", "--validation-limit", "6", "--limit", "8", "-o", str(out)]
    return subprocess.Popen(
        [sys.executable, "-c", SLOW, str(pause), *words],
        # One thread, as in the run that they are compared with: sums depend on it.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.guard
def test_a_run_that_is_killed_in_a_training_is_taken_up(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        whole = run(ONE, tmp_path / "whole", progress=SILENT)
    finally:
        torch.set_num_threads(threads)
    out = tmp_path / "out"
    process = start(out, 0.3)
    deadline = time.monotonic() + 200
    files: list[Path] = []
    while not any(read_tensors(file, "checkpoint")[1]["cursor"] >= 1 for file in files):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
        files = list((out / "training").rglob("*.pt"))
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert not (out / "records").exists() or not list((out / "records").rglob("*.json"))
    again = start(out, 0.0)
    shown = again.communicate(timeout=300)
    assert again.returncode == 0, shown
    assert "not judged" in shown[0], "eight pairs are too few"
    assert numbers(run(ONE, out, progress=SILENT)) == numbers(whole)
    assert not list((out / "training").rglob("*.pt"))


def test_all_truths_are_one_word() -> None:
    experiment = VariablesExperiment(("truth",))
    assert "truth-ioi-trained" in experiment.models and len(experiment.cells()) > 2 * len(
        experiment.models
    )


# --- a model that does not do the task, counterfactuals that cannot tell --------------------------


def test_a_model_that_answers_nothing_is_told_with_counts(tmp_path: Path) -> None:
    nothing = untrained(ma.load_model("truth-ioi-trained"))
    experiment = replace(ONE, models=("mine",), tasks=("truth-ioi",), featurizers=("das", "dbm"))
    with pytest.raises(BadUsage, match=r"answers none of \d+ .*: \d+ model wrong on base"):
        run(experiment, tmp_path / "run", models={"mine": nothing}, progress=SILENT)


def test_counterfactuals_that_cannot_tell_the_variable_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other letters leave the place of the right choice as it is."""

    def all_of(model: Any, task: Any, split: str, n: int, *rest: Any, **how: Any) -> Examples:
        return task.examples(split, limit=n)

    monkeypatch.setattr("mechassay.variables.inputs.answered_examples", all_of)
    kinds = ("symbol_counterfactual",)
    experiment = replace(
        ONE, models=("mine",), tasks=("mcqa",), variables=("answer_pointer",), kinds=kinds
    )
    tiny = make_model(*with_words(), name="mine")
    with pytest.raises(BadUsage, match="cannot tell mcqa: answer_pointer from mcqa: nothing"):
        run(experiment, tmp_path / "run", models={"mine": tiny}, progress=SILENT)


# --- IOI: heads instead of sites ------------------------------------------------------------------


@pytest.mark.slow
def test_variables_of_a_logit_difference_are_looked_for_in_heads(tmp_path: Path) -> None:
    experiment = VariablesExperiment(
        ("mine",),
        ("ioi",),
        featurizers=("full-vector", "das"),
        # Not the last layer: its head says the name, whatever the signals are.
        layers="1",
        ks=(2, 8),
        train_limit=8,
        validation_limit=6,
        limit=6,
    )
    about: dict[str, Any] = {"models": {"mine": planted_ioi()}, "tasks": {"ioi": PlantedIOI()}}
    results = run(experiment, tmp_path / "run", progress=SILENT, **about)
    assert not results.failures
    names = [record.specs["variable"].name for record in results.records]
    assert sorted(names) == ["subject_position"] * 2 + ["subject_token"] * 2
    for record in results.records:
        whole = record.method.name == "full-vector"
        home = "1.0" if record.specs["variable"].name == "subject_position" else "1.1"
        assert home in str(record.method.args["heads"])
        error, constant = record.measure("mse"), record.measure("mse", "control:best constant")
        assert error is not None and constant is not None
        assert not whole or error.value < constant.value / 4
        assert ("k" in record.method.args) == (not whole)
        linear = record.specs["variable"].args
        assert linear["linear r2"] > 0.999
        assert linear["linear position"] == pytest.approx(HALF, abs=1e-3)
        assert linear["linear token"] == pytest.approx(HALF, abs=1e-3)
    heads = tmp_path / "run" / "heads"
    found = json.loads((heads / "mine--ioi.json").read_text("utf-8"))
    assert len(found["site"]) == 4 and (heads / "mine--ioi-linear.json").is_file()
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "mean squared error" in page and "best constant" in page
