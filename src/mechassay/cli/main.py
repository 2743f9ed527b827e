"""`mechassay`: the command groups, and how errors reach the person who typed.

Exit codes: 0 done · 1 a cell failed, or a computation did · 2 wrong usage · 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mechassay.cli import report
from mechassay.errors import MechassayError
from mechassay.version import __version__

INTERRUPTED = 130

GROUPS = {
    "circuits": "Find circuits, and test how much of a behaviour they explain.",
    "patch": "Patch activations between prompts: which layers and tokens carry the answer?",
    "variables": "Find where a model stores a causal variable, and in which directions.",
    "gym": "Find linear features for grammatical contrasts, as CausalGym does.",
    "saes": "Train sparse autoencoders, and measure their quality.",
    "adversarial": "Measure how badly a circuit fails on its worst prompts.",
    "measure": "Test whether a metric can be trusted: reliability, d-prime, DIF, error rates.",
    "truth": "Test a method on models whose circuit is known.",
    "claims": "Judge claims of papers by a validity rubric, with human or model judges.",
    "leaderboard": "Rank methods on boards, and check submissions.",
    "models": "List, fetch and check models.",
    "tasks": "List tasks, show their prompts, and score models on them.",
    "methods": "List methods that find circuits, and explain each of them.",
    "hub": "Share results on the Hugging Face hub.",
}
"""Command groups and their help. Their modules are large and are imported when named."""
COMMANDS = {
    "assay": "Test a claim: run the experiments that its criteria need, and judge the results.",
    "reproduce": "Run the tables of the five papers, and compare them with the published numbers.",
    "plan": "Estimate the memory and the time of another command before anything is loaded.",
    "report": "Show the results of a run again, or index several runs.",
    "run-cells": "Run some cells of a run, for example in one task of an array job.",
}
"""Commands without a group, and their help."""
FIRST = {
    "circuits": "circuits run -m truth-ioi --method eap-ig",
    "patch": "patch run -m truth-ioi -t truth-ioi",
    "variables": "variables run -m truth-mcqa-trained",
    "gym": "gym run -m gym-neox -t cleft",
    "saes": "saes train --help",
    "adversarial": "adversarial run -m truth-ioi -t truth-ioi --circuit truth",
    "measure": "measure run EX25 -m truth-ioi",
    "truth": "truth list",
    "claims": "claims form --help",
    "leaderboard": "leaderboard build runs",
    "models": "models check truth-ioi",
    "tasks": "tasks show ioi --limit 3",
    "methods": "methods list",
    "hub": "hub push --help",
}
"""The command of each group to start with."""
PANELS = {
    "Find and test mechanisms": ("circuits", "patch", "variables", "gym", "saes", "adversarial"),
    "Test the instrument": ("measure", "truth"),
    "Judge and compare": ("assay", "claims", "leaderboard", "reproduce"),
    "Models, tasks and files": (
        *("models", "tasks", "methods", "plan", "report", "run-cells", "hub"),
    ),
}
"""Commands as `mechassay --help` lists them."""
OTHERS = "Of other packages"
START = """Three commands to start with:

mechassay circuits run -m truth-ioi --method eap-ig   (find a circuit that is known)

mechassay models check NAME_OR_FOLDER   (does mechassay read my model?)

mechassay tasks list   (your own pairs of prompts are a file: CSV, JSON, Parquet)
"""


def _panel(name: str) -> str:
    return next((panel for panel, names in PANELS.items() if name in names), OTHERS)


class _InOrder(TyperGroup):
    """Commands in the order of `PANELS`, then those of other packages."""

    def list_commands(self, ctx: Any) -> list[str]:
        order = [name for names in PANELS.values() for name in names]
        others = [name for name in super().list_commands(ctx) if name not in order]
        return [name for name in order if name in self.commands] + others


def app_for(words: list[str]) -> typer.Typer:
    """The command line, with the commands of the groups that are among the words."""
    app = typer.Typer(
        cls=_InOrder,
        help="Find out whether a claim about how a language model works is true.",
        epilog=START,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for name, about in GROUPS.items():
        named = name in words
        group = _group_of(name) if named else _unnamed()
        first = f"Start with: mechassay {FIRST[name]}"
        app.add_typer(group, name=name, help=about, epilog=first, rich_help_panel=_panel(name))
    # Kinds of run that other packages registered; each is a group with the command `run`.
    added = {point.name for point in entry_points(group="mechassay.experiments")}
    for name in added - set(GROUPS):
        group = _group_of(name) if name in words else _unnamed()
        app.add_typer(group, name=name, help="Of another package.", rich_help_panel=OTHERS)
    assayed = import_module("mechassay.cli.claims").assay if "assay" in words else _nothing
    _add(app, "assay", assayed)
    reproduced = (
        import_module("mechassay.cli.reproduce").reproduce if "reproduce" in words else _nothing
    )
    _add(app, "reproduce", reproduced)
    planned = _nothing
    if "plan" in words:
        planned = import_module("mechassay.cli.plan").plan_command(app_for)
    verbatim = {"allow_extra_args": True, "allow_interspersed_args": False}
    _add(app, "plan", planned, help=COMMANDS["plan"], context_settings=verbatim)
    _add(app, "report", report.report)
    _add(app, "run-cells", report.run_cells)
    return app


def _add(app: typer.Typer, name: str, function: Callable[..., None], **more: Any) -> None:
    app.command(name, short_help=COMMANDS[name], rich_help_panel=_panel(name), **more)(function)


def _group_of(kind: str) -> typer.Typer:
    """Return the commands of a group: those of its file in `cli`, or `run` of the kind of run."""
    if find_spec(f"mechassay.cli.{kind}") is not None:
        return import_module(f"mechassay.cli.{kind}").app
    from mechassay.cli.command import command
    from mechassay.runs import EXPERIMENTS

    group = _unnamed()
    group.command("run")(command(EXPERIMENTS.load(kind)))
    return group


def _unnamed() -> typer.Typer:
    group = typer.Typer()
    group.callback()(_nothing)
    return group


def _nothing() -> None: ...


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mechassay {__version__}")
        raise typer.Exit


def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the trace of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Show the version and stop."
        ),
    ] = False,
) -> None:
    """Options that stand before the command; `main` reads --debug itself."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit; errors are one line, and a trace with `--debug`."""
    given = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in given
    words = ["--debug", *(word for word in given if word != "--debug")] if debug else given
    app = app_for([*words, *os.environ.get("COMP_WORDS", "").split()])
    try:
        # Not standalone: typer would end the process on Ctrl-C before it could be said that nothing
        # is lost. It turns Ctrl-C into this exit code by itself, or into an exception, by version.
        # A command that does not go on where it was ends the process with a message of its own.
        code = app(words, standalone_mode=False)
    except MechassayError as error:
        if debug:
            raise
        typer.echo(f"mechassay: {error}", err=True)
        sys.exit(2 if error.usage else 1)
    except OSError as error:
        # What the machine refuses: a full disk, a folder that may not be written to.
        if debug:
            raise
        typer.echo(
            f"mechassay: {error.filename or 'the system'}: {error.strerror or error}", err=True
        )
        sys.exit(1)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        # Wrong options and arguments: typer's bundled copy of click has no public name for them.
        show, code = getattr(error, "show", None), getattr(error, "exit_code", None)
        if show is None or code is None:
            raise
        show()
    if code == INTERRUPTED:
        typer.echo(
            "mechassay: interrupted; what was done is kept, the same command goes on from there.",
            err=True,
        )
    sys.exit(code if isinstance(code, int) else 0)
