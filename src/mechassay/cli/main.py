"""`mechassay`: the command groups, and how errors reach the person who typed.

Exit codes: 0 done · 1 a cell failed, or a computation did · 2 wrong usage · 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated

import typer

from mechassay.cli import report
from mechassay.errors import MechassayError
from mechassay.version import __version__

INTERRUPTED = 130

GROUPS = {
    "models": "List, fetch and check models.",
    "tasks": "List tasks, show and check their pairs, and score models on them.",
    "methods": "List discovery methods and show what each does.",
    "circuits": "Find circuits, measure how faithful they are, and compare methods.",
    "truth": "Models whose circuit is known: list, verify and train them.",
    "patch": "Patch activations between prompts: what single sites carry, as heat maps.",
    "variables": "Look for causal variables in models, and check files that say where they are.",
    "gym": "Linear features on tasks of minimal pairs: list tasks, show pairs, run methods.",
    "saes": "Sparse autoencoders: train them, say how good they are, read those of others.",
    "adversarial": "How badly circuits fail in the worst case.",
    "claims": "Judge claims about mechanisms: forms, language models, scores, comparison, records.",
    "leaderboard": "Boards of runs as pages, and any cell of them recomputed.",
    "hub": "Push results to the Hugging Face hub, and pull them.",
    "measure": "Whether measurements can be trusted: reliability, d-prime, DIF, error rates.",
}
"""Command groups and what they are for. Their modules are large and are imported when named."""
REPRODUCE = "The tables of papers beside ours: published, ours, difference, status."
ASSAY = "From claims to a verdict: run what their criteria ask for, judge them by the records."

PLAN = "What another command would take here, GB and minutes, before anything is loaded."


def app_for(words: list[str]) -> typer.Typer:
    """The command line, with the commands of the groups that are among the words."""
    app = typer.Typer(
        help="Assay claims about how language models work inside.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for name, about in GROUPS.items():
        named = name in words
        group = import_module(f"mechassay.cli.{name}").app if named else _unnamed()
        app.add_typer(group, name=name, help=about)
    # Kinds of run that other packages registered; each is a group with the command `run`.
    added = {point.name for point in entry_points(group="mechassay.jobs")}
    for name in added - set(GROUPS):
        group = _group_of(name) if name in words else _unnamed()
        app.add_typer(group, name=name, help="Of another package.")
    assayed = import_module("mechassay.cli.claims").assay if "assay" in words else _nothing
    app.command("assay", help=ASSAY)(assayed)
    reproduced = (
        import_module("mechassay.cli.reproduce").reproduce if "reproduce" in words else _nothing
    )
    app.command("reproduce", help=REPRODUCE)(reproduced)
    planned = _nothing
    if "plan" in words:
        planned = import_module("mechassay.cli.plan").plan_command(app_for)
    verbatim = {"allow_extra_args": True, "allow_interspersed_args": False}
    app.command("plan", help=PLAN, context_settings=verbatim)(planned)
    app.command("report")(report.report)
    app.command("run-cells")(report.run_cells)
    return app


def _group_of(kind: str) -> typer.Typer:
    from mechassay.cli.command import command
    from mechassay.runs import JOBS

    group = _unnamed()
    group.command("run")(command(JOBS.load(kind)))
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
