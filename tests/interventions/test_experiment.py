"""Patching as a run: its page has the maps, its maps are kept, private prompts are not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import mechassay as ma
from helpers.experiments import SMALL_EXPERIMENTS
from helpers.tiny_models import with_words
from mechassay.errors import BadUsage, UnknownName
from mechassay.interventions.activation_patching import patch
from mechassay.interventions.patch_map import PatchMap
from mechassay.interventions.patch_page import PatchPage
from mechassay.interventions.patch_verdict import templates
from mechassay.interventions.patching import PatchExperiment
from mechassay.models.model import make_model
from mechassay.results.page import Report
from mechassay.runs.worker import kept_file
from mechassay.utils.display import SILENT


def test_a_run_keeps_maps_and_its_page_shows_them(tmp_path: Path) -> None:
    results = ma.run(SMALL_EXPERIMENTS["patch"], tmp_path / "run", progress=SILENT)
    heads, resid = results.records
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert page.count("<svg") >= 2 and "No verdict" in page and "mechassay patch run" in page
    found = PatchMap.load(
        kept_file(tmp_path / "run", SMALL_EXPERIMENTS["patch"], "truth-ioi--truth-ioi/heads")
    )
    shares = heads.table("patches").where(template="all prompts").numbers("share")
    np.testing.assert_allclose(found.share.ravel(), shares)
    # The head that moves the name is known (truth-ioi: the last layer's name mover).
    assert np.unravel_index(int(found.share.argmax()), found.share.shape) == (2, 2)
    assert resid.checks[0].passed and heads.values is not None and heads.values.sha256


def test_private_prompts_are_not_in_what_is_written(tmp_path: Path) -> None:
    experiment = replace(SMALL_EXPERIMENTS["patch"], split="private", private_seed=11)
    ma.run(experiment, tmp_path / "run", progress=SILENT)
    task = ma.load_task("truth-ioi")
    pairs = task.pairs("private", ma.load_model("truth-ioi"), limit=4, private_seed=11)
    written = [p for p in (tmp_path / "run").rglob("*") if p.is_file()]
    for path in written:
        text = path.read_bytes().decode("utf-8", "replace")
        assert not any(pair.clean in text for pair in pairs), path
    plan = json.loads((tmp_path / "run" / "plan.json").read_text("utf-8"))
    assert plan.get("private_seed") is None
    headings = PatchMap.load(
        kept_file(tmp_path / "run", SMALL_EXPERIMENTS["patch"], "truth-ioi--truth-ioi/resid")
    ).headings
    assert {heading.rstrip("…") for heading in headings} <= {"·", ""}


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"parts": ("residual",)}, UnknownName, "Did you mean 'resid'"),
        ({"direction": "noise"}, UnknownName, "Did you mean 'noising'"),
        ({"objective": "logit"}, UnknownName, "Did you mean 'logit_diff'"),
        ({"tasks": ("iol",)}, BadUsage, "Did you mean 'ioi'"),
    ],
)
def test_a_plan_that_cannot_be_run_leaves_no_folder(
    changes: dict[str, object], error: type[Exception], said: str, tmp_path: Path
) -> None:
    small: PatchExperiment = SMALL_EXPERIMENTS["patch"]
    with pytest.raises(error, match=said):
        ma.run(replace(small, **changes), tmp_path / "run", progress=SILENT)  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "run").exists()


def test_maps_of_templates_are_named_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(*with_words(), name="tiny")
    pairs = ma.load_task("ioi").pairs("train", model, limit=6)
    record = patch(model, pairs, progress=SILENT).record()
    names, shown = templates(record), str(PatchPage().sections(Report([record])))
    assert len(names) == 7 and "more templates" not in shown
    assert all(f"{name}, {n} pair" in shown for name, n in zip(names, [6] + [1] * 6, strict=True))
    monkeypatch.setattr("mechassay.interventions.patch_page.TEMPLATES", 2)
    assert "4 more templates are in the record." in str(PatchPage().sections(Report([record])))


def test_records_of_patching_draw_themselves(tmp_path: Path) -> None:
    experiment = replace(SMALL_EXPERIMENTS["patch"], parts=("heads",), limit=3)
    results = ma.run(experiment, tmp_path / "run", progress=SILENT)
    figure = results.plot()
    assert figure.axes[0].get_xlabel() == "head" and len(figure.axes[0].images) == 1
    assert "<svg" in results.records[0].html()
