"""Alignments as folders of ours: written, read, and every mistake found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import tiny_models
from helpers.mib_files import SMALL, rotation
from mechassay.causal_models.ioi import LogitDifference
from mechassay.errors import BadFile, BadUsage, GraphMismatch
from mechassay.features.featurizer import Affine, Directions, Identity
from mechassay.features.finder import Fit
from mechassay.features.probes import FullVector
from mechassay.interventions.site import ModelShape, Site, load_site
from mechassay.models.graph import Graph
from mechassay.models.model import make_model
from mechassay.testing import tiny
from mechassay.variables.alignment import VariableAlignment
from mechassay.variables.mib_submission import validate


def alignment(**changes: Any) -> VariableAlignment:
    heads = load_site("heads.1.0,1.1@all")
    fit = Fit(
        {
            Site(1): Directions(rotation(8, 3)),
            Site(2, "op2"): Identity(8),
            heads: Affine.of(rotation(8, 2) + 0.1),
        },
        {Site(2, "op2"): torch.arange(8) < 2},
        provenance={"finder": "das", "settings": {"k": 3}},
    )
    told = {"task": "arithmetic-addition", "variable": "carry", "model": "mine", "shape": SMALL}
    return VariableAlignment(**{**told, "fit": fit, "method": "das", **changes})


LINEAR = LogitDifference(0.1, 2.0, 0.7, float("nan"), 0, {})


def test_a_folder_is_read_back(tmp_path: Path) -> None:
    given = alignment(coefficients=LINEAR)
    read = VariableAlignment.load(given.save(tmp_path / "carry"))
    names = ("task", "variable", "model", "causal_model", "method", "shape")
    assert [getattr(read, name) for name in names] == [getattr(given, name) for name in names]
    assert read.causal_model == "arithmetic-addition"
    assert read.fit.sites == given.fit.sites and read.fit.provenance == given.fit.provenance
    assert torch.equal(read.fit.directions(Site(1)), given.fit.directions(Site(1)))
    assert torch.equal(read.fit.chosen[Site(2, "op2")], given.fit.chosen[Site(2, "op2")])
    assert read.coefficients is not None and read.coefficients.position == 2.0
    assert validate(tmp_path / "carry") == []
    assert "carry" in repr(read) and "resid.1@last" in read._repr_html_()
    again = alignment().save(tmp_path / "carry")
    assert VariableAlignment.load(again).coefficients is None


def test_a_folder_with_something_else_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / "note").touch()
    with pytest.raises(BadUsage, match="something else already"):
        alignment().save(tmp_path)


def test_a_site_of_another_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match=r"Site resid\.2@op2: mine has layers -1 to 1; got 2\."):
        alignment(shape=ModelShape(Graph(2, 2), 8, 4))
    with pytest.raises(BadUsage, match=r"resid\.1@last: mine has 6 numbers .* are of 8\."):
        alignment(shape=ModelShape(Graph(3, 2), 6, 3))
    folder = alignment().save(tmp_path / "carry")
    model = make_model(*tiny_models.with_words())
    with pytest.raises(GraphMismatch, match="is about mine .3 layers, 2 heads of 4, width 8"):
        VariableAlignment.load(folder, model)
    assert "is about mine" in validate(folder, model=model)[0].message
    unknown = alignment(shape=None, fit=Fit({Site(9): Identity()})).save(tmp_path / "unknown")
    with pytest.raises(BadUsage, match="layers -1 to 2; got 9"):
        VariableAlignment.load(unknown, model)


def test_a_fit_that_knows_its_model_says_the_rest(tmp_path: Path) -> None:
    model = make_model(*tiny_models.with_words())
    fit = FullVector().fit(model, tiny.token_pairs(), [Site(1)])
    made = VariableAlignment.of(fit, "ioi", "subject_token")
    assert (made.model, made.shape, made.method) == (
        *(model.name, ModelShape.of(model), fit.provenance["finder"]),
    )
    read = VariableAlignment.load(made.save(tmp_path / "it"), model)
    assert read.fit.model is model
    with pytest.raises(BadUsage, match="does not know its model"):
        VariableAlignment.of(Fit.load(tmp_path / "it" / "fit.safetensors"), "ioi", "subject_token")


def header(**changes: Any) -> Callable[[Path], Any]:
    def change(folder: Path) -> None:
        told = json.loads((folder / "alignment.json").read_text())
        (folder / "alignment.json").write_text(json.dumps({**told, **changes}))

    return change


@pytest.mark.parametrize(
    ("change", "path", "said"),
    [
        (header(kind="other"), "alignment.json", "kind 'other', format 1"),
        (header(format=2), "alignment.json", "format 2; this version reads"),
        (header(task=3), "alignment.json", "needs task as text"),
        (header(sites=["resid.1@last"]), "alignment.json", "not those of fit.safetensors"),
        (header(sites=None), "alignment.json", "needs sites as a list"),
        (header(shape=[1]), "alignment.json", "needs shape as an object"),
        (header(shape={}), "alignment.json", "got nothing"),
        (header(shape={**SMALL.as_dict(), "n_layers": 4}), "alignment.json", "fingerprint"),
        (header(shape={**SMALL.as_dict(), "d_head": True}), "alignment.json", "positive integers"),
        (header(shape=ModelShape(Graph(2, 2), 8, 4).as_dict()), "fit.safetensors", "got 2"),
        (header(variable="cary"), "alignment.json", "Did you mean 'carry'?"),
        (lambda at: (at / "alignment.json").write_text("{"), "alignment.json", "as JSON"),
        (lambda at: (at / "alignment.json").write_text("[]"), "alignment.json", "expected an obj"),
        (lambda at: (at / "fit.safetensors").unlink(), "fit.safetensors", "no such file"),
        (lambda at: (at / "fit.safetensors").write_bytes(b"x"), "fit.safetensors", "not a readabl"),
        (lambda at: (at / "run.py").touch(), "run.py", "code, which is never run"),
        (
            lambda at: (at / "logit_difference.json").write_text("{}"),
            *("logit_difference.json", "no fit of a logit difference"),
        ),
        (
            lambda at: (at / "logit_difference.json").symlink_to("/etc/hostname"),
            *("logit_difference.json", "leads out"),
        ),
    ],
)
def test_a_mistake_in_a_folder_is_found(
    tmp_path: Path, change: Callable[[Path], Any], path: str, said: str
) -> None:
    folder = alignment().save(tmp_path / "carry")
    change(folder)
    (problem,) = validate(folder).errors
    assert problem.path == path and said in problem.message
    with pytest.raises(BadFile) as error:
        VariableAlignment.load(folder)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_every_mistake_is_found_at_once(tmp_path: Path) -> None:
    folder = alignment().save(tmp_path / "carry")
    header(variable="cary", sites=[], causal_model="theirs")(folder)
    (folder / "run.py").touch()
    (folder / "more.txt").touch()
    (folder / "logit_difference.json").write_text("{}")
    found = validate(folder)
    assert sorted({problem.path for problem in found.errors}) == [
        *("alignment.json", "logit_difference.json", "run.py"),
    ]
    warnings = {problem.path for problem in found if problem.warning}
    assert warnings == {"alignment.json", "more.txt"}


def test_a_folder_that_is_not_there_has_one_problem(tmp_path: Path) -> None:
    assert [problem.path for problem in validate(tmp_path / "none")] == ["."]
    with pytest.raises(BadFile, match="there is no such folder"):
        VariableAlignment.load(tmp_path / "none")
