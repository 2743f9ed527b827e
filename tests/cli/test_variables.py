"""`mechassay variables`: the command that checks folders."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Outcome

from helpers.mib_files import save_identity, stream
from mechassay.features.featurizer import Identity
from mechassay.features.finder import Fit
from mechassay.interventions.site import Site
from mechassay.utils.files import CODE
from mechassay.variables.alignment import VariableAlignment

Run = Callable[..., Outcome]


def test_a_folder_of_either_kind_is_valid(run: Run, tmp_path: Path) -> None:
    save_identity(
        tmp_path / "mib" / "ravel_task_LlamaForCausalLM_Country", stream(3, "last_token"), 4096
    )
    done = run("variables", "validate", tmp_path / "mib")
    assert done.code == 0 and done.out.strip() == f"{tmp_path / 'mib'}: a valid folder"
    assert done.err.count("warning: ravel_task_LlamaForCausalLM_Country: ") == 2
    fit = Fit({Site(1): Identity(8)})
    VariableAlignment("mcqa", "answer", "mine", fit).save(tmp_path / "own")
    assert run("variables", "validate", tmp_path / "own").code == 0


def test_every_problem_is_listed(run: Run, tmp_path: Path) -> None:
    (tmp_path / "featurizer.py").touch()
    (tmp_path / "ravel_task_LlamaForCausalLM_Country").mkdir()
    done = run("variables", "validate", tmp_path)
    assert done.code == 1
    assert done.err.splitlines() == [
        f"featurizer.py: {CODE}",
        "ravel_task_LlamaForCausalLM_Country: no units.",
        f"2 problems in {tmp_path}",
    ]
    told = json.loads(run("variables", "validate", tmp_path, "--json").out)
    assert not told["valid"] and [each["path"] for each in told["problems"]] == [
        *("featurizer.py", "ravel_task_LlamaForCausalLM_Country"),
    ]
    ignored = run("variables", "validate", tmp_path, "--ignore-code")
    assert ignored.code == 1 and ignored.err.startswith("warning: featurizer.py")


def test_a_model_of_another_class_is_wrong_usage(run: Run, tmp_path: Path, folder: Path) -> None:
    done = run("variables", "validate", tmp_path / "none", "-m", folder)
    assert done.code == 1 and "there is no such folder" in done.err


def test_an_interchange_is_drawn_to_a_file(run: Run, tmp_path: Path) -> None:
    name = "truth-mcqa-trained"
    fit = Fit({Site(1, "last"): Identity(48)})
    VariableAlignment("truth-mcqa", "answer_pointer", name, fit).save(tmp_path / "own")
    figure = tmp_path / "figures" / "one.svg"
    done = run("variables", "draw", tmp_path / "own", "-m", name, "--example", "2", "-o", figure)
    assert done.code == 0 and "answer_pointer of truth-mcqa-test-" in done.out
    assert "<svg" in figure.read_text("utf-8")
    missing = run("variables", "draw", tmp_path / "none", "-m", name)
    assert missing.code == 2 and len(missing.err.splitlines()) == 1
