"""Search jobs: a task by its name or itself, prompts without fields,
and circuits found on other pairs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mechassay.errors import BadUsage, UnknownName
from mechassay.models.model import Model
from mechassay.progress import SILENT
from mechassay.runs.adversarial_search import SearchJob, SearchRun
from mechassay.runs.names import load_named, task_named
from mechassay.tasks.template import Template

TRUTH = "truth-ioi"
RUN = SearchRun(
    TRUTH,
    TRUTH,
    "eap-ig-inputs@4",
    n_clean=6,
    n_corrupted=6,
    budget=60,
    starts=1,
    restarts=0,
    compare=False,
    train_limit=8,
)


@pytest.fixture(scope="module")
def model() -> Model:
    return load_named(TRUTH)


def test_a_task_is_searched_like_its_name(model: Model) -> None:
    found = [
        SearchJob(replace(RUN, task=task), lambda: model, SILENT).search()
        for task in (TRUTH, task_named(TRUTH))
    ]
    assert found[0][0].as_dict() == found[1][0].as_dict() and found[0][1] == found[1][1] == ""
    assert len(found[0][0].best.steps) > 1
    assert RUN.about() == replace(RUN, task=task_named(TRUTH)).about()


def test_a_task_of_ones_own(model: Model) -> None:
    rows = [
        {"one": "Ann", "other": name, "filler": filler}
        for name in ("Bob", "Cid", "Dan", "Eve")
        for filler in ("so", "and", ",", ".")
    ]
    own = Template("own", "then {one} {other} {filler} so so so . {one} to", " {other}", rows)
    run = replace(RUN, task=own, n_clean=2, n_corrupted=1, train_limit=3)
    result, no_fields = SearchJob(run, lambda: model, SILENT).search()
    assert no_fields == "" and {climb.clean.text.split()[1] for climb in result.climbs} == {"Ann"}
    assert run.about()["task"] == "own" and run.about()["settings"]["sha256"]


def test_no_fields_are_said_in_a_line(model: Model, tmp_path: Path) -> None:
    text = "then {} {} so so so so . {} to"
    pairs = [("Ann", "Bob"), ("Cid", "Dan"), ("Eve", "Fay"), ("Ann", "Dan")]
    rows = [
        {
            "clean": text.format(a, b, a),
            "counterfactual": text.format(b, a, b),
            "answer": f" {b}",
            "foil": f" {a}",
        }
        for a, b in pairs
    ]
    file = tmp_path / "own.jsonl"
    file.write_text(
        "\n".join(json.dumps({**row, "split": "test"}) for row in rows), encoding="utf-8"
    )
    run = replace(RUN, task=str(file), circuit="random@0.5", n_clean=2, n_corrupted=2)
    result, no_fields = SearchJob(run, lambda: model, SILENT).search()
    assert no_fields.endswith(
        "have no fields, so nothing was changed: the search compared pairs of the prompts as they"
        " are."
    )
    assert all(len(climb.steps) == 1 for climb in result.climbs)


def test_the_circuit_may_be_found_on_other_pairs(model: Model) -> None:
    found = {
        pairing: (
            SearchJob(
                replace(RUN, objective="kl", pairing=pairing), lambda: model, SILENT
            ).search()[0]
        )
        for pairing in ("matched", "same-template")
    }
    assert all(result.lower_bound > 0 for result in found.values())
    about = replace(RUN, objective="kl", pairing="random").about()
    assert (about["objective"], about["pairing"]) == ("kl", "random")


def test_what_is_wrong_is_said_before_the_model_is_loaded() -> None:
    def never() -> Model:
        raise AssertionError("the model was loaded")

    for run, error in (
        (replace(RUN, circuit="eap"), BadUsage),
        (replace(RUN, pairing="unmatched"), UnknownName),
        (replace(RUN, objective="nope"), UnknownName),
        (replace(RUN, task="nope"), UnknownName),
    ):
        with pytest.raises(error):
            SearchJob(run, never, SILENT)
