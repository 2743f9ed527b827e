"""Submissions to MIB's causal track: what its code writes is read, nothing is run, and every
mistake is found.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers import tiny_models
from helpers.mib_files import (
    BOARD,
    SMALL,
    SubspaceModule,
    head,
    info,
    rotation,
    save_files,
    save_identity,
    save_subspace,
    stream,
    trained,
)
from mechassay.causal_models.ioi import LogitDifference
from mechassay.errors import BadFile, BadUsage, GraphMismatch, UnknownName
from mechassay.features.featurizer import (
    Affine,
    ChosenFeatures,
    Directions,
    Featurizer,
    Identity,
    PrincipalAxes,
)
from mechassay.features.finder import Fit
from mechassay.features.sae import SAE
from mechassay.interventions.site import ModelShape, Site, load_site
from mechassay.models.model import make_model
from mechassay.testing import tiny
from mechassay.variables.alignment import VariableAlignment
from mechassay.variables.mib_format import MIB_BOARD, ROLES
from mechassay.variables.mib_submission import mib_problems, read_mib_folder, write_mib_folder

MCQA = "4_answer_MCQA_Gemma2ForCausalLM_answer_pointer"
CARRY = "arithmetic_LlamaForCausalLM_ones_carry"
TOKEN = "ioi_task_GPT2LMHeadModel_output_token"
PARAMETERS = {"gpt2": {"bias": 0.1, "token_coeff": 0.7, "position_coeff": 2.0, "score": 0.9}}


def submission(root: Path) -> Path:
    """A submission with every kind of unit."""
    save_subspace(root / MCQA, stream(0, "last_token"), trained(8, 3), None)
    save_subspace(root / MCQA, stream(2, "correct_symbol"), trained(8, 4, seed=5), [0, 2])
    save_identity(root / MCQA, stream(2, "last_token"), 8, [7, 1])
    save_identity(root / CARRY / "full", stream(1, "last"), None)
    save_identity(root / CARRY / "dbm", stream(1, "op2_last"), 8, [])
    for number in (0, 1):
        save_subspace(root / TOKEN, head(1, number), trained(4, 2, seed=number))
    (root / "ioi_linear_params.json").write_text(json.dumps(PARAMETERS))
    return root


def test_what_mibs_code_writes_is_read(tmp_path: Path) -> None:
    mcqa, dbm, full, ioi = sorted(
        read_mib_folder(submission(tmp_path), board=BOARD),
        key=lambda each: ("mcqa", "arithmetic-addition", "ioi").index(each.task),
    )
    assert (mcqa.task, mcqa.variable, mcqa.model, mcqa.method) == (
        *("mcqa", "answer_pointer", "google/gemma-2-2b", ""),
    )
    sites = ["resid.0@last", "resid.2@correct_symbol", "resid.2@last"]
    assert [str(site) for site in mcqa.fit.sites] == sites
    expected = trained(8, 4, seed=5).rotate.weight.detach()
    assert torch.equal(mcqa.fit.featurizer(sites[1]).vectors, expected)
    assert torch.equal(mcqa.fit.directions(sites[1]), expected[:, [0, 2]])
    assert mcqa.fit.chosen.get(Site(0)) is None
    assert mcqa.fit.chosen[Site(2)].nonzero().flatten().tolist() == [1, 7]
    assert (dbm.variable, dbm.method, full.method) == ("carry", "dbm", "full")
    assert not dbm.fit.chosen[Site(1, "op2")].any()
    assert full.fit.sites == (Site(1),) and not full.fit.chosen
    assert ioi.variable == "subject_token" and ioi.model == "gpt2"
    assert ioi.fit.together
    assert [str(site) for site in ioi.fit.sites] == ["heads.1.0@all", "heads.1.1@all"]
    assert ioi.coefficients is not None
    assert (ioi.coefficients.bias, ioi.coefficients.token, ioi.coefficients.position) == (
        *(0.1, 0.7, 2.0),
    )
    assert ioi.coefficients.r2 == 0.9


def test_where_mibs_evaluator_reads_otherwise_it_is_said(tmp_path: Path) -> None:
    found = mib_problems(submission(tmp_path), board=BOARD)
    assert not found.errors
    said = {(problem.path, problem.message.split(":")[0]) for problem in found}
    indices = "MIB's evaluator drops the indices and exchanges all features."
    assert {(MCQA, indices), (f"{CARRY}/dbm", indices)} <= said
    assert any(
        path == f"{CARRY}/dbm" and "takes an empty list as all" in text for path, text in said
    )
    assert any(path == MCQA and text.startswith("2 of 3 layers") for path, text in said)
    assert (MCQA, "3 sites have no featurizer, such as resid.0@correct_symbol") in said


@pytest.mark.parametrize("k", [1, 3, 8])
def test_an_exchange_is_that_of_mibs_featurizer(tmp_path: Path, k: int) -> None:
    """f = x W, error = x - f W'; then the source's features with the base's error."""
    module, unit = trained(8, k), stream(1, "last_token")
    save_subspace(tmp_path / MCQA, unit, module)
    indices = list(range(0, k, 2))
    save_subspace(tmp_path / MCQA, stream(2, "last_token"), module, indices)
    (read,) = read_mib_folder(tmp_path, board=BOARD)
    base, source = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        (ours, error), (theirs, _) = module.featurize(base), module.featurize(source)
        some = ours.clone()
        some[:, indices] = theirs[:, indices]
        whole, part = module.invert(theirs, error), module.invert(some, error)
    torch.testing.assert_close(read.fit.features("resid.1@last").change(base, source), whole)
    torch.testing.assert_close(read.fit.features("resid.2@last").change(base, source), part)


# Code and other dangers


class Marker:
    """A pickle of it makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("role", ["featurizer", "inverse_featurizer"])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path: Path, role: str) -> None:
    root, marker, unit = submission(tmp_path / "sub"), tmp_path / "ran", stream(0, "last_token")
    content = {"model_info": Marker(marker), "state_dict": {}}
    torch.save(content, root / MCQA / f"{unit}_{role}")
    with pytest.raises(BadFile, match="nothing was run"):
        read_mib_folder(root, board=BOARD)
    assert not marker.exists()
    # The file does run code where it is loaded without care: the test can fail.
    torch.load(root / MCQA / f"{unit}_{role}", weights_only=False)
    assert marker.exists()


@pytest.mark.parametrize("name", ["featurizer.py", "token_position.py", f"{MCQA}/more.py"])
def test_a_folder_with_code_is_refused_unless_it_is_to_be_ignored(
    tmp_path: Path, name: str
) -> None:
    root, marker = submission(tmp_path / "sub"), tmp_path / "ran"
    (root / name).write_text(f"import os; os.mkdir({str(marker)!r})")
    with pytest.raises(BadFile, match="code, which is never run") as error:
        read_mib_folder(root, board=BOARD)
    assert "\n" not in str(error.value)
    assert len(read_mib_folder(root, ignore_code=True, board=BOARD)) == 4
    assert not marker.exists()


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    root, unit = submission(tmp_path / "sub"), stream(0, "last_token")
    outside = shutil.move(root / MCQA / f"{unit}_featurizer", tmp_path / "outside")
    (root / MCQA / f"{unit}_featurizer").symlink_to(outside)
    (root / "arithmetic_Gemma2ForCausalLM_ones_carry").symlink_to(root / ".." / "sub" / "..")
    found = mib_problems(root, board=BOARD)
    assert {(problem.path, problem.message[:28]) for problem in found.errors} == {
        (f"{MCQA}/{unit}_featurizer", "a link that leads out of the"),
        ("arithmetic_Gemma2ForCausalLM_ones_carry", "a link that leads out of the"),
    }


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_a_truncated_file_is_refused(tmp_path: Path, part: float) -> None:
    root, path = submission(tmp_path), f"{MCQA}/{stream(0, 'last_token')}_featurizer"
    content = (root / path).read_bytes()
    (root / path).write_bytes(content[: int(part * len(content))])
    assert [problem.path for problem in mib_problems(root, board=BOARD).errors] == [path]


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_file_is_read_or_refused_and_nothing_else(
    data: st.DataObject, tmp_path_factory: Any
) -> None:
    root, k = tmp_path_factory.mktemp("damaged"), data.draw(st.sampled_from([3, 8]))
    save_subspace(root / MCQA, stream(1, "last_token"), trained(8, k), [0])
    role = data.draw(st.sampled_from(ROLES))
    path = root / MCQA / f"{stream(1, 'last_token')}_{role}"
    content = bytearray(path.read_bytes())
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=6)):
        content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    errors = mib_problems(root, board=BOARD).errors
    assert all(role in problem.path or "inverse" in problem.path for problem in errors)
    assert all("\n" not in problem.message for problem in errors)


@pytest.mark.parametrize("role", ROLES)
def test_a_file_that_is_too_large_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    unit = stream(1, "last_token")
    save_subspace(tmp_path / MCQA, unit, trained(8, 2))
    monkeypatch.setattr("mechassay.variables.mib_format.LARGEST_ARCHIVE", 2**12)
    monkeypatch.setattr("mechassay.utils.files.LARGEST_JSON", 2**12)
    with (tmp_path / MCQA / f"{unit}_{role}").open("ab") as file:
        file.truncate(2**12 + 1)
    (problem,) = mib_problems(tmp_path, board=BOARD).errors
    assert problem.path.endswith(role) and problem.message.endswith("it was not opened.")


def test_an_archive_with_compressed_records_is_refused(tmp_path: Path) -> None:
    unit = stream(1, "last_token")
    save_subspace(tmp_path / MCQA, unit, trained(8, 2))
    path = tmp_path / MCQA / f"{unit}_featurizer"
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, record in records.items():
            archive.writestr(name, record)
    (problem,) = mib_problems(tmp_path, board=BOARD).errors
    assert "compressed records" in problem.message


# Mistakes


def test_every_mistake_is_found_at_once(tmp_path: Path) -> None:
    root = submission(tmp_path)
    unit = stream(0, "last_token")
    save_subspace(root / MCQA, stream(0, "nowhere"), trained(8, 2))
    save_subspace(root / MCQA, stream(3, "last_token"), trained(8, 2))
    save_subspace(root / MCQA, stream(1, "last_token"), trained(7, 2))
    save_identity(root / MCQA, stream(1, "correct_symbol"), 8, [8])
    save_identity(root / MCQA, stream(1, "correct_symbol_period"), 9)
    save_subspace(root / MCQA, head(0, 0), trained(4, 2))
    (root / MCQA / f"{unit}_inverse_featurizer").unlink()
    (root / MCQA / f"{unit}_indices").write_text("[1, true]")
    (root / "RAVEL_Gemma2ForCausalLM_Country").mkdir()
    (root / "ravel_task_Gemma2ForCausalLM_Cuontry").mkdir()
    (root / "arithmetic_GPT2LMHeadModel_ones_carry").mkdir()
    (root / "ravel_task_LlamaForCausalLM_Country").mkdir()
    (root / "ioi_linear_params.json").write_text('{"gpt2": {"bias": true}}')
    found = {problem.path: problem.message for problem in mib_problems(root, board=BOARD).errors}
    said = {
        f"{MCQA}/{stream(0, 'nowhere')}": "Position 'nowhere' is none of 4_answer_MCQA",
        f"{MCQA}/{stream(3, 'last_token')}": "has layers -1 to 2; got 3",
        f"{MCQA}/{stream(1, 'last_token')}_featurizer": "shape (7, 2); values of this site have 8",
        f"{MCQA}/{stream(1, 'correct_symbol')}_indices": "features are 0 to 7; got 8.",
        f"{MCQA}/{stream(1, 'correct_symbol_period')}_featurizer": "an identity of 9 numbers",
        f"{MCQA}/{head(0, 0)}": "units of 4_answer_MCQA are of part 'resid'; got 'heads'.",
        f"{MCQA}/{unit}_inverse_featurizer": "there is no such file.",
        f"{MCQA}/{unit}_indices": "must be a list of whole numbers",
        "RAVEL_Gemma2ForCausalLM_Country": "Unknown task",
        "ravel_task_Gemma2ForCausalLM_Cuontry": "Did you mean 'Country'?",
        "arithmetic_GPT2LMHeadModel_ones_carry": "does not evaluate GPT2LMHeadModel on arithmetic",
        "ravel_task_LlamaForCausalLM_Country": "no units.",
        "ioi_linear_params.json": "'gpt2' needs bias, token_coeff, position_coeff as numbers.",
    }
    assert set(found) == set(said)
    assert not [path for path, text in said.items() if text not in found[path]]
    with pytest.raises(BadFile, match=r"\(12 more: `mechassay variables validate` lists all\.\)"):
        read_mib_folder(root, board=BOARD)


def wrong_unit(change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Writes a unit whose model_info and state_dict were changed."""

    def write(folder: Path) -> None:
        module = trained(8, 3)
        weight = module.rotate.weight.detach().clone()
        about = info("Subspace", 3, rotation_matrix=weight, requires_grad=True)
        state = dict(module.state_dict())
        change(about, state)
        save_files(folder, stream(1, "last_token"), about, state, None)

    return write


def other_inverse(folder: Path) -> None:
    unit = stream(1, "last_token")
    save_subspace(folder, unit, trained(8, 3))
    kept = (folder / f"{unit}_featurizer").read_bytes()
    save_subspace(folder, unit, trained(8, 3, seed=9))
    (folder / f"{unit}_featurizer").write_bytes(kept)


def inverse_of_identity(folder: Path) -> None:
    unit = stream(1, "last_token")
    save_identity(folder, unit, 8)
    kept = (folder / f"{unit}_inverse_featurizer").read_bytes()
    save_subspace(folder, unit, trained(8, 3))
    (folder / f"{unit}_inverse_featurizer").write_bytes(kept)


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (other_inverse, "does not invert the featurizer"),
        (inverse_of_identity, "undoes IdentityFeaturizerModule; the featurizer is Subspace"),
        (
            wrong_unit(lambda about, _: about.update(featurizer_class="MineModule")),
            "MineModule, which is code that is not run",
        ),
        (
            wrong_unit(lambda about, _: about.update(featurizer_class="SAEFeaturizerModule")),
            "hold no SAEs",
        ),
        (wrong_unit(lambda about, _: about.update(n_features=4)), "n_features is 4"),
        (wrong_unit(lambda about, _: about.update(n_features=torch.ones(2))), "is a Tensor"),
        (wrong_unit(lambda about, _: about.update(additional_config={})), "no rotation_matrix"),
        (
            wrong_unit(lambda about, _: about["additional_config"]["rotation_matrix"].mul_(2)),
            "not orthonormal",
        ),
        (
            wrong_unit(
                lambda about, _: about["additional_config"].update(
                    rotation_matrix=rotation(8, 3, 4)
                )
            ),
            "two rotations",
        ),
        (wrong_unit(lambda _, state: state.clear()), "state_dict has []"),
        (
            wrong_unit(
                lambda _, state: state.update({k: v * float("nan") for k, v in state.items()})
            ),
            "two rotations, nan apart",
        ),
    ],
)
def test_a_unit_that_is_none_is_refused(
    tmp_path: Path, write: Callable[[Path], None], said: str
) -> None:
    write(tmp_path / MCQA)
    errors = mib_problems(tmp_path, board=BOARD).errors
    assert any(said in problem.message for problem in errors), errors
    assert all("\n" not in problem.message for problem in errors)


@pytest.mark.parametrize("text", ["", "[", "{}", "[0.5]", "[-1]", "[1, 1]", "[9999]", '["0"]'])
def test_indices_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    unit = stream(1, "last_token")
    save_subspace(tmp_path / MCQA, unit, trained(8, 3))
    (tmp_path / MCQA / f"{unit}_indices").write_text(text)
    (problem,) = mib_problems(tmp_path, board=BOARD).errors
    assert problem.path == f"{MCQA}/{unit}_indices"


def test_an_sae_is_named_by_the_reader(tmp_path: Path) -> None:
    (tmp_path / MCQA).mkdir()
    (tmp_path / MCQA / f"{stream(1, 'last_token')}_indices").write_text("[2, 0]")
    with pytest.raises(BadFile, match=r"never saves SAEs; the reader .* of resid\.1@last"):
        read_mib_folder(tmp_path, board=BOARD)
    w = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    sae = SAE(w, w.T.contiguous(), torch.zeros(5), torch.zeros(8))
    (read,) = read_mib_folder(tmp_path, featurizers={"resid.1@last": sae}, board=BOARD)
    assert read.fit.featurizer("resid.1@last") is sae
    assert read.fit.chosen[Site(1)].tolist() == [True, False, True, False, False]
    narrow = SAE(w[:6], w[:6].T.contiguous(), torch.zeros(5), torch.zeros(6))
    with pytest.raises(BadFile, match="values have 8 numbers; its features are of 6"):
        read_mib_folder(tmp_path, featurizers={"resid.1@last": narrow}, board=BOARD)
    with pytest.raises(BadUsage, match="no SAE"):
        write_mib_folder([read], tmp_path / "again", board=BOARD)
    assert not (tmp_path / "again").exists()


def test_a_loaded_model_says_how_wide_its_sites_are(tmp_path: Path) -> None:
    model = make_model(*tiny_models.with_words())
    shape = ModelShape.of(model)
    folder = tmp_path / "ioi_task_LlamaForCausalLM_output_token"
    save_subspace(folder, head(0, 3), trained(shape.d_head, 2))
    (tmp_path / "ioi_linear_params.json").write_text(json.dumps({"default": PARAMETERS["gpt2"]}))
    (read,) = read_mib_folder(tmp_path, model=model)
    assert read.fit.model is model and read.shape == shape and read.model == model.name
    with pytest.raises(BadFile, match=r"values of this site have 128 numbers"):
        read_mib_folder(tmp_path)
    save_subspace(folder, head(0, 4), trained(shape.d_head, 2))
    with pytest.raises(BadFile, match=r"has heads 0 to 3; got 4"):
        read_mib_folder(tmp_path, model=model)
    other = make_model(tiny.random_model(tiny.configs()["neox"]), None)
    with pytest.raises(UnknownName, match="class of a model of MIB's causal track"):
        read_mib_folder(tmp_path, model=other)


# Writing

FEATURIZERS: dict[str, Callable[[int, int], Featurizer]] = {
    "directions": lambda d, k: Directions(rotation(d, k, d + k)),
    "axes": lambda d, k: PrincipalAxes(rotation(d, k), torch.ones(d), torch.full((k,), 2.0)),
    "identity": lambda d, k: Identity(d),
}


@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_what_is_written_is_read_back(data: st.DataObject, tmp_path_factory: Any) -> None:
    root = tmp_path_factory.mktemp("written") / "submission"
    places = [load_site(f"resid.{layer}@{at}") for layer in range(3) for at in ("entity", "last")]
    sites = data.draw(st.lists(st.sampled_from(places), min_size=1, unique=True))
    featurizers: dict[Site, Featurizer] = {}
    chosen: dict[Site, torch.Tensor] = {}
    for site in sites:
        kind, k = data.draw(st.sampled_from(list(FEATURIZERS))), data.draw(st.integers(1, 8))
        featurizers[site] = FEATURIZERS[kind](8, k)
        if data.draw(st.booleans()):
            n = 8 if kind == "identity" else k
            bits = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
            chosen[site] = torch.tensor(bits)
    variable = data.draw(st.sampled_from(["Country", "Language"]))
    method = data.draw(st.sampled_from(["", "das"]))
    fit = Fit(featurizers, chosen)
    given_ = VariableAlignment("ravel", variable, "google/gemma-2-2b", fit, "", SMALL, method)
    write_mib_folder([given_], root, board=BOARD)
    (read,) = read_mib_folder(root, board=BOARD)
    assert (read.task, read.variable, read.model, read.method) == (
        *("ravel", variable, "google/gemma-2-2b", method),
    )
    assert set(read.fit.sites) == set(sites)
    for site in sites:
        assert torch.equal(read.fit.directions(site), fit.directions(site))
        assert (site in chosen) == (site in read.fit.chosen)
        if site in chosen:
            assert torch.equal(read.fit.chosen[site], chosen[site])


@pytest.mark.parametrize("k", [1, 5, 8])
def test_mibs_loader_gets_the_rotation_to_the_last_bit(tmp_path: Path, k: int) -> None:
    """As it does: the matrix is copied in, and then the state dict is loaded."""
    vectors = rotation(8, k, seed=2)
    fit = Fit({Site(1): Directions(vectors)})
    alignment = VariableAlignment("mcqa", "answer", "google/gemma-2-2b", fit, shape=SMALL)
    write_mib_folder([alignment], tmp_path / "sub", board=BOARD)
    folder = tmp_path / "sub" / "4_answer_MCQA_Gemma2ForCausalLM_answer"
    for role in ("featurizer", "inverse_featurizer"):
        told = torch.load(folder / f"{stream(1, 'last_token')}_{role}", weights_only=True)
        module = SubspaceModule(told["model_info"]["additional_config"]["rotation_matrix"])
        module.load_state_dict(told["state_dict"])
        assert torch.equal(module.rotate.weight.detach(), vectors)
    assert (folder / f"{stream(1, 'last_token')}_indices").read_text() == "null"


def heads(coefficients: LogitDifference | None) -> VariableAlignment:
    sites = [load_site(f"heads.1.{number}@all") for number in (0, 1)]
    fit = Fit({site: Directions(rotation(4, 2)) for site in sites})
    return VariableAlignment(
        "ioi", "subject_position", "gpt2", fit, shape=SMALL, coefficients=coefficients
    )


def test_heads_are_written_with_the_coefficients_of_their_model(tmp_path: Path) -> None:
    linear = LogitDifference(0.5, 1.5, -2.0, float("nan"), 0, {})
    write_mib_folder([heads(linear)], tmp_path / "sub", board=BOARD)
    (read,) = read_mib_folder(tmp_path / "sub", board=BOARD)
    assert read.variable == "subject_position" and read.coefficients is not None
    assert (read.coefficients.bias, read.coefficients.position, read.coefficients.token) == (
        *(0.5, 1.5, -2.0),
    )
    with pytest.raises(BadUsage, match="needs its coefficients"):
        write_mib_folder([heads(None)], tmp_path / "none", board=BOARD)
    other = replace(heads(replace(linear, bias=3.0)), variable="subject_token")
    with pytest.raises(BadUsage, match="gpt2 has two"):
        write_mib_folder([heads(linear), other], tmp_path / "two", board=BOARD)


def test_what_the_board_does_not_have_is_not_written(tmp_path: Path) -> None:
    def alignment(site: str = "resid.1@last", **changes: Any) -> VariableAlignment:
        fit = Fit({load_site(site): Directions(rotation(8, 2))})
        told = {"task": "mcqa", "variable": "answer", "model": "google/gemma-2-2b", "shape": SMALL}
        return VariableAlignment(**{**told, "fit": fit, **changes})

    affine = Fit({Site(1): Affine.of(torch.eye(8)[:, :2] + 0.1)})
    for wrong, kind, said in [
        (alignment(task="mcqa2"), UnknownName, "mcqa"),
        (alignment(variable="carry"), UnknownName, "variable of mcqa"),
        (alignment(model="mine"), UnknownName, "gpt2"),
        (alignment(model="gpt2"), BadUsage, "does not evaluate"),
        (alignment("resid.1@question"), BadUsage, "correct_symbol"),
        (alignment("mlp.1@last"), BadUsage, "of part 'resid'"),
        (alignment(method="../up"), BadUsage, "cannot"),
        (alignment(fit=affine), BadUsage, "no Affine"),
    ]:
        with pytest.raises(kind, match=said):
            write_mib_folder([wrong], tmp_path / "sub", board=BOARD)
    with pytest.raises(GraphMismatch, match="3 layers, 2 heads of 4, width 8; google/gemma-2-2b"):
        write_mib_folder([alignment()], tmp_path / "sub")
    with pytest.raises(BadUsage, match="Two alignments"):
        write_mib_folder([alignment(), alignment()], tmp_path / "sub", board=BOARD)
    with pytest.raises(BadUsage, match="or of none"):
        write_mib_folder([alignment(), alignment(method="das")], tmp_path / "sub", board=BOARD)
    with pytest.raises(BadUsage, match="got none"):
        write_mib_folder([], tmp_path / "sub", board=BOARD)
    assert not (tmp_path / "sub").exists()
    (tmp_path / "note").touch()
    with pytest.raises(BadUsage, match="something already"):
        write_mib_folder([alignment()], tmp_path, board=BOARD)


def test_a_model_of_another_name_is_told_by_its_shape() -> None:
    gemma = MIB_BOARD.models["Gemma2ForCausalLM"].shape
    assert MIB_BOARD.named("mcqa", "answer", "./gemma", gemma) == (
        "4_answer_MCQA_Gemma2ForCausalLM_answer"
    )


def test_the_board_is_mibs() -> None:
    pairs = {(task, kind) for task, each in MIB_BOARD.tasks.items() for kind in each.models}
    variables = {task: len(each.variables) for task, each in MIB_BOARD.tasks.items()}
    assert len(pairs) == 13 and sum(variables[task] for task, _ in pairs) == 26
    for task, kind in pairs:
        about = MIB_BOARD.tasks[task]
        for theirs, ours in about.variables.items():
            name = f"{task}_{kind}_{theirs}"
            assert MIB_BOARD.parsed(name) == (task, kind, theirs)
            assert MIB_BOARD.named(about.name, ours, MIB_BOARD.models[kind].name, None) == name


def test_features_read_are_those_an_intervention_takes(tmp_path: Path) -> None:
    save_subspace(tmp_path / MCQA, stream(1, "last_token"), trained(8, 2))
    (read,) = read_mib_folder(tmp_path, board=BOARD)
    assert isinstance(read.fit.features("resid.1@last"), ChosenFeatures)
