"""Commands that are made of jobs: what their help shows first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from mechassay.cli.main import GROUPS, app_for


def leaves(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every command below a group, with its words."""
    inner = getattr(command, "commands", {})
    for word, each in inner.items():
        yield from leaves(each, f"{name} {word}".strip())
    if not inner:
        yield name, command


def options(command: Any) -> dict[str, str | None]:
    """The panel of every option, by its first flag; None is that of --help, which comes first."""
    return {
        each.opts[0]: each.rich_help_panel
        for each in command.params
        if each.param_type_name == "option"
    }


ROOT: Any = typer.main.get_command(app_for([*GROUPS, "assay"]))
RUNS = {
    name: panels
    for name, command in leaves(ROOT)
    if "--only-plan" in (panels := options(command)) or name == "assay"
}


def test_commands_of_all_groups_are_looked_at() -> None:
    assert {"assay", "circuits run", "gym evaluate", "tasks score", "saes train"} < set(RUNS)
    assert len(RUNS) >= 15


@pytest.mark.parametrize("name", RUNS)
def test_the_first_panel_has_at_most_five_options(name: str) -> None:
    first = [flag for flag, panel in RUNS[name].items() if panel is None]
    assert 1 <= len(first) <= 5 and "--output" in first


def test_the_first_panel_says_what_to_run() -> None:
    flags = {"--model", "--task", "--method", "--limit", "--output"}
    assert {flag for flag, panel in RUNS["circuits run"].items() if panel is None} == flags
