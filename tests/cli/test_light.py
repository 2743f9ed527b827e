"""Help, lists and what is refused by name come at once: nothing that runs models is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HEAVY = ("torch", "scipy", "matplotlib", "transformers", "jinja2")
LISTS = ("models", "tasks", "measure", "gym", "methods", "variables", "truth")
"""Groups whose list is told without the classes that it lists."""
REFUSED = (
    "circuit run",
    "circuits runn",
    "circuits run -m truth-ioi --methodd eap",
    "circuits run -m smolm2-135m -t ioi",
    "circuits run -m truth-ioi -t iio",
    "circuits run -m truth-ioi -M eep:steps=3",
    "circuits run -m truth-ioi --metric recal",
    "circuits run -m truth-ioi --engine raay",
    "tasks score -m truth-ioi -t iio",
    "tasks show iio",
    "tasks check iio",
    "tasks export iio -o nowhere",
    "patch run -m truth-ioi -t iio",
    "variables run -m truth-ioo",
    "adversarial run -m truth-ioi -t iio -c truth",
    "saes train -m smolm2-135m --site resid.1",
    "gym run -m gym-neox -t clef",
    "gym run -m gym-neox -M dass",
    "gym show clef",
    "measure run EX99 -m truth-ioi",
    "measure null EX99",
    "models check smolm2-135m",
    "models fetch smolm2-135m",
    "methods show eep",
    "truth verify truth-iio",
    "truth sites truth-iio",
    "reproduce mibb",
    "plan saes train -m truth-ioi",
    "plan circuits run -m truth-ioi -t iio",
)
SCRIPT = f"""
import contextlib, io, json, sys
import typer
from mechassay.cli.main import GROUPS, app_for, main

HEAVY, first, codes = {HEAVY}, {{}}, {{}}

def call(words):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main(words)
        except SystemExit as stopped:
            codes[" ".join(words)] = stopped.code
    for name in HEAVY:
        if name in sys.modules:
            first.setdefault(name, " ".join(words))

def helps(command, words):
    call([*words, "--help"])
    for name, inner in getattr(command, "commands", {{}}).items():
        helps(inner, [*words, name])

helps(typer.main.get_command(app_for([*GROUPS, "assay", "plan"])), [])
n_helps = len(codes)
for words in json.loads(sys.argv[1]):
    call(words)
print(json.dumps([first, codes, n_helps]))
"""


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What imported each heavy module first, exit codes by command, and how many were help."""
    words = [*([group, "list"] for group in LISTS), *(line.split() for line in REFUSED)]
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(words)],
        cwd=tmp_path_factory.mktemp("empty"),
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_nothing_heavy_is_imported(typed: Any) -> None:
    first, _, n_helps = typed
    assert not first, f"modules with the first command that imports them: {first}"
    assert n_helps > 60


def test_what_is_refused_exits_with_2(typed: Any) -> None:
    _, codes, _ = typed
    others = {line: codes[line] for line in REFUSED if codes[line] != 2}
    assert not others
    assert {codes[f"{group} list"] for group in LISTS} == {0}
