"""Lists of what there is, as tables and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from mechassay.circuits.methods import METHODS
from mechassay.cli.main import main
from mechassay.models.sources import truth_names
from mechassay.tasks import TASKS

Run = Callable[..., str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Run:
    """What a command prints."""

    def run(*words: str) -> str:
        with pytest.raises(SystemExit) as stopped:
            main(list(words))
        printed = capsys.readouterr()
        assert not stopped.value.code, printed.err
        return printed.out

    return run


def test_methods_are_listed_with_their_settings(said: Run) -> None:
    rows = {row["name"]: row for row in json.loads(said("methods", "list", "--json"))}
    assert list(rows) == METHODS.names()
    assert rows["eap-ig-inputs"]["settings"] == {"steps": 5, "points": "left", "backward": "plain"}
    assert all(row["about"].endswith(".") for row in rows.values())
    table = said("methods", "list")
    assert all(name in table for name in rows)


def test_a_method_is_shown_with_its_formula(said: Run) -> None:
    text = said("methods", "show", "eap-ig-inputs")
    assert "Hanna et al. 2024" in text and "eap-ig-inputs:steps=5,points=left" in text


def test_an_unknown_method_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["methods", "show", "eap-ig-input"])
    assert stopped.value.code == 2
    assert "Did you mean 'eap-ig-inputs'" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("group", "names"), [("tasks", TASKS.names()), ("truth", truth_names())], ids=("tasks", "truth")
)
def test_other_lists(group: str, names: list[str], said: Run) -> None:
    rows = json.loads(said(group, "list", "--json"))
    assert list(dict.fromkeys(row["name"] for row in rows)) == names
    table = said(group, "list")
    assert all(name in table for name in names)


def test_models_are_listed(said: Run) -> None:
    rows = json.loads(said("models", "list", "--json"))
    assert {"smollm2-135m", "gemma3-270m"} <= {row["name"] for row in rows}
    assert "Families: cohere, cohere2, falcon, gemma, gemma2" in said("models", "list")
