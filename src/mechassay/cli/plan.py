"""`mechassay plan COMMAND...`: what another command would take, before anything is loaded.

The rest of the line is read by the command itself, with its own options; its experiment is not run.
"""

from __future__ import annotations

import json as encoder
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mechassay.cli.command import PLANNED
from mechassay.cli.output import say
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
        costs: list[Cost] = []

        def planned(experiment: Any, device: str) -> None:
            from mechassay.runs.folder import RunFolder
            from mechassay.runs.worker import Worker

            worker = Worker(RunFolder(Path()), device)
            costs.append(COSTS.load(experiment.kind)(experiment, experiment.cells(), worker))

        token = PLANNED.set(planned)
        try:
            app_for(words)(words, standalone_mode=False)
        finally:
            PLANNED.reset(token)
        for cost in costs:
            _write(cost, json)

    return plan


def _check_planned(words: list[str]) -> None:
    """Refuse a command without an experiment or without an estimate, because it would be run.

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


def _write(cost: Cost, as_json: bool) -> None:
    from mechassay.runs.costs import GB, RANGE

    if as_json:
        seconds = cost.seconds
        plain = {
            "fits": cost.fits,
            "gb": cost.gigabytes,
            "weights_gb": max((work.size.bytes for work in cost.works), default=0.0) / GB,
            "free_gb": cost.free_gigabytes,
            "minutes": [seconds / RANGE / 60, seconds * RANGE / 60],
            "device": cost.device,
        }
        typer.echo(encoder.dumps(plain, indent=1))
    else:
        say(f"{cost.line[:1].upper()}{cost.line[1:]}.")
    if not cost.fits:
        typer.echo(f"mechassay: {would_fit(cost)}", err=True)
        raise typer.Exit(1)


def would_fit(cost: Cost) -> str:
    """Name, in one line, the changes by which a run would fit: shorter prompts, another dtype,
    layers elsewhere, a GPU.
    """
    import torch

    from mechassay.models.memory import CPU_BUDGET, available_bytes
    from mechassay.runs.costs import CHUNK, GB

    free = cost.free_gigabytes or 0.0
    most = max(cost.works, key=lambda work: work.bytes)
    size, over, ways = most.size, (cost.gigabytes - free) * GB, list[str]()
    # One chunk is held whatever the prompts are.
    beyond_chunk = most.held - CHUNK * CPU_BUDGET
    if beyond_chunk > over:
        ways.append(
            "shorter prompts, or fewer pairs (--train-limit, --limit, batch_size of a method), to"
            f" save up to {beyond_chunk / GB:.1f} GB"
        )
    halved = size.weights * (size.bytes_each - 2)
    if halved > max(over, 0.0):
        ways.append(f"--dtype bfloat16, which needs {cost.gigabytes - halved / GB:.1f} GB")
    apart = size.bytes - size.layer_bytes
    if apart > over:
        left = available_bytes(torch.device("cpu"))
        beside = cost.device != "cpu" and (left is None or apart <= left)
        ways.append(
            f"--device-map with the layers {'in the CPU memory' if beside else 'on disk'}, of which"
            f" one is held at a time: {cost.gigabytes - apart / GB:.1f} GB, and longer"
        )
    if cost.device != "cuda" and torch.cuda.is_available():
        on_gpu = (available_bytes(torch.device("cuda")) or 0) / GB
        ways += [f"--device cuda, with {on_gpu:.1f} GB free"] if most.bytes / GB <= on_gpu else []
    if not ways:
        ways = [f"a machine or GPU with {cost.gigabytes:.1f} GB; nothing that can be typed here"]
    return f"{most.model} does not fit in {free:.1f} GB. What would: {'; '.join(ways)}."
