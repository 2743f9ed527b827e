"""`mechassay`: the command groups, and how errors reach the person who typed.

Exit codes: 0 done · 1 a cell failed, or a computation did · 2 wrong usage · 130 interrupted.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mechassay.cli import adversarial, circuits, models, report, suite, tasks, truth
from mechassay.errors import MechassayError
from mechassay.version import __version__

INTERRUPTED = 130

app = typer.Typer(
    help="Assay claims about how language models work inside.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(models.app, name="models")
app.add_typer(tasks.app, name="tasks")
app.add_typer(circuits.app, name="circuits")
app.add_typer(suite.app, name="suite")
app.add_typer(truth.app, name="truth")
app.add_typer(adversarial.app, name="adversarial")
app.command("report")(report.report)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mechassay {__version__}")
        raise typer.Exit


@app.callback()
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
    """Run the command line and exit. An error of ours is one line on standard error;
    `--debug` shows its trace.
    """
    given = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in given
    words = ["--debug", *(word for word in given if word != "--debug")] if debug else given
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
