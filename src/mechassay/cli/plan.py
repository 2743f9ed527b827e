"""`mechassay plan COMMAND...`: what another command would take, before anything is loaded.

The rest of the line is read by the command itself, with its own options; its job is not run.
"""

from __future__ import annotations

import json as encoder
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mechassay.cli.command import PLANNED
from mechassay.cli.output import say, show
from mechassay.errors import UnknownName
from mechassay.runs import COSTS

if TYPE_CHECKING:
    from mechassay.runs.costs import Cost

COMMANDS = (
    *("circuits run", "circuits localize", "circuits evaluate", "patch run", "variables run"),
    *("gym run", "adversarial run", "tasks score", "reproduce"),
)
"""Commands whose cost can be said."""


def plan_command(app_for: Callable[[list[str]], typer.Typer]) -> Callable[..., None]:
    """The command, for a command line that `app_for` makes of words."""

    def plan(
        context: typer.Context,
        command: Annotated[
            str, typer.Argument(help=f"The rest of the line: {', '.join(COMMANDS)}, and options.")
        ],
        json: Annotated[bool, typer.Option("--json", help="Write the plan as JSON.")] = False,
    ) -> None:
        words = [command, *context.args]
        _check_planned(words)
        costs: list[tuple[Any, Cost]] = []

        def planned(job: Any, device: str) -> None:
            costs.append((job, COSTS.load(job.kind)(job, job.cells(), device)))

        token = PLANNED.set(planned)
        try:
            app_for(words)(words, standalone_mode=False)
        finally:
            PLANNED.reset(token)
        for job, cost in costs:
            _write(job, cost, json)

    return plan


def _check_planned(words: list[str]) -> None:
    """Refuse a command that is no job, or one whose cost nobody knows: it would be run.

    Raises:
        UnknownName: it is.
    """
    name = words[0]
    if name != "reproduce":
        name = " ".join(words[:2])
    if name not in COMMANDS and not _of_another_package(words):
        raise UnknownName("command to plan", name, COMMANDS)


def _of_another_package(words: list[str]) -> bool:
    """Whether words are those of a kind of run that another package registered with its cost."""
    return words[0] in COSTS.targets().keys() - COSTS.built_in.keys() and words[1:2] == ["run"]


def _write(job: Any, cost: Cost, as_json: bool) -> None:
    if as_json:
        typer.echo(
            encoder.dumps(
                {
                    "fits": cost.fits,
                    "gb": cost.gigabytes,
                    "free_gb": cost.free_gigabytes,
                    "minutes": cost.minutes,
                    "device": cost.device,
                    "rows": cost.rows(),
                    "notes": cost.notes,
                },
                indent=1,
                ensure_ascii=False,
            )
        )
    else:
        say(f"{cost.line[:1].upper()}{cost.line[1:]}.")
        rows = [
            {name: f"{x:.2f}" if isinstance(x, float) else x for name, x in row.items()}
            for row in cost.rows()
        ]
        columns = ("model", "what", "gb", "minutes")
        show([{name: row[name] for name in columns} for row in rows], False)
        for note in cost.notes:
            say(note)
    if not cost.fits:
        typer.echo(f"mechassay: {would_fit(cost, getattr(job, 'dtype', ''))}", err=True)
        raise typer.Exit(1)


def would_fit(cost: Cost, dtype: str) -> str:
    """What would fit of a run that does not, in one line: another dtype, fewer pairs, one layer's
    weights at a time, a device.
    """
    from mechassay.runs.costs import GB

    free = cost.free_gigabytes or 0.0
    most = max(cost.models, key=lambda part: part.held)
    size, ways = most.size, list[str]()
    step = max((step.held for step in most.steps), default=0.0)
    over = cost.gigabytes - free
    if step / GB > over:
        ways.append(
            "shorter prompts, or fewer pairs a chunk (--train-limit, --limit, batch_size of a"
            f" method): the largest step holds {step / GB:.1f} GB"
        )
    if size.bytes_each > 2:
        saved = size.weights * (size.bytes_each - 2) / GB
        if saved > over:
            ways.append(f"--dtype bfloat16, which needs {cost.gigabytes - saved:.1f} GB")
    apart = size.bytes - size.layer_bytes
    if apart / GB > over:
        ways.append(
            f"--device-map with the layers {_elsewhere(cost, apart)}, of which one is held at a"
            f" time: {cost.gigabytes - apart / GB:.1f} GB, and longer"
        )
    ways += [f"{name}, with {gb:.1f} GB free" for name, gb in _other_devices(cost)]
    if not ways:
        ways = [f"a machine or GPU with {cost.gigabytes:.1f} GB; nothing that can be typed here"]
    return f"{most.model} does not fit in {free:.1f} GB. What would: {'; '.join(ways)}."


def _elsewhere(cost: Cost, n_bytes: float) -> str:
    """Where the layers' weights have room: the CPU's memory beside a GPU, else the disk."""
    import torch

    from mechassay.models.memory import available_bytes

    free = available_bytes(torch.device("cpu"))
    beside = cost.device != "cpu" and (free is None or n_bytes <= free)
    return "in the CPU's memory" if beside else "on disk"


def _other_devices(cost: Cost) -> list[tuple[str, float]]:
    """Other devices of this machine that have room, and their free GB."""
    import torch

    from mechassay.models.memory import available_bytes

    if cost.device == "cuda" or not torch.cuda.is_available():
        return []
    free = (available_bytes(torch.device("cuda")) or 0) / 1e9
    need = max(part.held for part in cost.models) / 1e9
    return [("--device cuda", free)] if need <= free else []
