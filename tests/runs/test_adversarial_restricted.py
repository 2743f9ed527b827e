"""Adversarial runs on a part of the pairs: of one template, of one value, or none at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from adversarial_runs import FAST, TRUTH, records_of, small_grid, study, values_of
from mechassay.adversarial.pools import draw_pools
from mechassay.errors import BadUsage, UnknownName
from mechassay.models.model import Model, load_model, make_model
from mechassay.report.kinds.adversarial_templates import halves
from mechassay.report.reports import write_page
from mechassay.report.sections import broken
from mechassay.runs.adversarial import AdversarialJob
from mechassay.runs.adversarial_study import AdversarialStudy
from mechassay.tasks import load_task
from mechassay.testing.tiny import with_words


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(TRUTH)


@pytest.fixture(scope="module")
def job(model: Model, tmp_path_factory: pytest.TempPathFactory) -> AdversarialStudy:
    return small_grid(tmp_path_factory.mktemp("runs") / "grid", model)


IOI_READER: dict[str, Any] = {
    "counterfactual": "abc_counterfactual",
    "n_clean": 12,
    "n_corrupted": 10,
    **FAST,
}


@pytest.fixture(scope="module")
def reader() -> Model:
    """A model that reads IOI."""
    return make_model(*with_words())


@pytest.mark.slow
def test_a_grid_of_one_template_runs_nothing_else(reader: Model, tmp_path: Path) -> None:
    plans = {
        same: AdversarialJob("reader", "ioi", ("random@0.5",), same=same, controls=3, **IOI_READER)
        for same in ((), ("template",))
    }
    jobs = {same: study(plan, tmp_path / f"{len(same)}", reader) for same, plan in plans.items()}
    (whole,), (some,) = (records_of(job) for job in jobs.values())
    job = jobs["template",]
    part, table = job.part, pyarrow.parquet.read_table(job.values_file)
    assert (
        part is not None
        and table.num_rows == part.n_values == some.measures[0].n < 120 == whole.measures[0].n
    )
    prompts = json.loads((job.folder.path / "prompts.json").read_text("utf-8"))
    templates = [pool.labels("template") for pool in job.pools]
    assert [len(prompts[side]) for side in ("clean", "corrupted")] == [
        len(pool) for pool in job.pools
    ]
    assert templates[0] is not None and templates[1] is not None
    rows, columns = (table[side].to_pylist() for side in ("clean", "corrupted"))
    assert [templates[0][row] for row in rows] == [templates[1][column] for column in columns]
    # The split of the whole grid says of the same pairs what the restricted run says of all of its
    # own.
    same, different = halves(whole)
    found = values_of(some)
    assert (
        (same["pairs"], different["pairs"]) == ("same", "different")
        and same["n"] + different["n"] == 120
        and same["n"] == part.n_values
    )
    assert same["result", "mean"][0] == pytest.approx(found["mean"], abs=1e-5)
    assert same["result", "max"][0] == pytest.approx(found["max"], abs=1e-5)
    assert [half["pairs"] for half in halves(some)] == ["same"]
    assert some.task.args["same"] == "template" and whole.task.args.get("same") is None
    assert max(some.table("random circuits").numbers("pairs")) <= 9
    assert all(check.n <= 9 for check in some.checks if check.name.endswith("circuit"))
    bins = some.table("histogram").where(range="own")
    assert not broken(some) and bins.numbers("circuit").sum() == part.n_values
    page = write_page(job.folder.path / "page.html", [some], kind="adversarial").read_text("utf-8")
    assert (
        "those that agree in template" in page
        and "Both prompts of every pair have the same of" in page
    )
    # Labels are compared among prompts with the same partners: the template itself cannot be.
    labels = some.table("labels").rows()
    templates_compared = [x["compared"] for x in labels if str(x["field"]).endswith("template")]
    assert labels and not any(templates_compared)
    assert "By template" in write_page(
        jobs[()].folder.path / "page.html", [whole], kind="adversarial"
    ).read_text("utf-8")


def test_pairs_that_all_agree_are_a_grid_like_any_other(model: Model, tmp_path: Path) -> None:
    plain, same = (
        study(
            AdversarialJob(
                TRUTH, TRUTH, ("random@0.5",), same=fields, n_clean=9, n_corrupted=8, **FAST
            ),
            tmp_path / f"{len(fields)}",
            model,
        )
        for fields in ((), ("template",))
    )
    assert same.part is None
    (one,), (other,) = records_of(plain), records_of(same)
    assert one.model_dump_json(include={"curves", "measures"}) == other.model_dump_json(
        include={"curves", "measures"}
    )


def test_where_is_of_all_prompts(reader: Model, tmp_path: Path) -> None:
    place = draw_pools(load_task("ioi"), reader, 1, 1)[0].prompts[0].part("place")
    run = AdversarialJob(
        "reader",
        "ioi",
        ("random@0.5",),
        where=(f"place={place}",),
        **{**IOI_READER, "n_clean": 3, "n_corrupted": 2},
    )
    job = study(run, tmp_path, reader)
    (record,) = records_of(job)
    assert {prompt.part("place") for pool in job.pools for prompt in pool.prompts} == {place}
    assert record.task.args["where"] == f"place={place}" and record.measures[0].n == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"same": ("template",), "design": "matched"}, "--same chooses among the pairs of a grid"),
        ({"same": ("template",), "ablation": "zero"}, "--same chooses among the pairs of a grid"),
        ({"same": ("template", "template")}, "--same takes FIELD"),
        ({"where": ("object",)}, "--where takes FIELD=VALUE"),
        (
            {"where": ("object=x",), "design": "matched", "enumerate_all": True},
            "--enumerate takes all",
        ),
        ({"pairing": "random"}, "of circuits that a method finds"),
        ({"objective": "kl"}, "of circuits that a method finds"),
        (
            {"circuits": ("eap@9",), "pairing": "random", "ablation": "mean"},
            "Only counterfactual ablation pairs prompts",
        ),
        ({"controls": 0}, "controls must be 1 or more"),
    ],
)
def test_restrictions_that_no_design_has_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadUsage, match=message):
        AdversarialJob(
            **{"model": TRUTH, "task": TRUTH, "circuits": ("truth",), **settings}
        ).refuse()
    with pytest.raises(UnknownName, match="pairing"):
        AdversarialJob(TRUTH, TRUTH, ("eap@9",), pairing="unmatched").refuse()


def test_prompts_without_fields_are_said(model: Model, tmp_path: Path) -> None:
    names = (("Ann", "Bob"), ("Cid", "Dan"), ("Eve", "Fay"), ("Ann", "Dan"))
    text = "then {} {} so so so so . {} to"
    rows = [
        json.dumps(
            {
                "clean": text.format(a, b, a),
                "counterfactual": text.format(b, a, b),
                "answer": f" {b}",
                "foil": f" {a}",
                "split": "test",
            }
        )
        for a, b in names
    ]
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(rows), encoding="utf-8")
    run = AdversarialJob(TRUTH, str(file), ("truth",), n_clean=2, n_corrupted=2, **FAST)
    (record,) = records_of(study(run, tmp_path / "out", model))
    assert any("have no fields: no label can be compared" in text for text in record.warnings)
    assert record.task.args["templates"] is None
