"""`mechassay adversarial search`: pairs that are worse than those of a sample."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mechassay.cli.options import BosOption, CounterfactualOption, DeviceOption, DtypeOption, ModelOption, SeedOption, TaskOption, load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mechassay.adversarial.climbs import SearchResult
    from mechassay.circuits.node_scores import Scores
    from mechassay.circuits.scores import Circuit
    from mechassay.models.model import Model
    from mechassay.runs.named_circuits import NamedCircuit
    from mechassay.tasks.task import Task

INTERRUPTED = 130


def search(
    model: ModelOption,
    task: TaskOption,
    circuit: Annotated[str, typer.Option("--circuit", "-c", help="A circuit as `mechassay adversarial run` takes them: canonical:ioi.")],
    n_clean: Annotated[int, typer.Option("--n-clean", help="Clean prompts that the search begins with.")] = 500,
    n_corrupted: Annotated[int, typer.Option("--n-corrupted", help="Corrupted prompts that the search begins with.")] = 500,
    split: Annotated[str, typer.Option("--split", help="Split of the prompts: train, validation or test.")] = "test",
    counterfactual: CounterfactualOption = None,
    budget: Annotated[int, typer.Option("--budget", help="Pairs to evaluate at the most.")] = 20_000,
    starts: Annotated[int, typer.Option("--starts", help="Climbs from the worst pairs of the prompts.")] = 8,
    restarts: Annotated[int, typer.Option("--restarts", help="Climbs from random pairs after these.")] = 8,
    compare: Annotated[bool, typer.Option(help="Also evaluate as many random pairs.")] = True,
    train_limit: Annotated[int, typer.Option("--train-limit", help="Pairs that a method finds the circuit on.")] = 100,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Also write all climbs as JSON.")] = None,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    seed: SeedOption = 0,
    prepend_bos: BosOption = False,
) -> None:
    """Change prompts field by field for a larger divergence: a lower bound on the largest one. Ctrl-C ends it with the best so far."""
    import json

    from mechassay.adversarial import search as searching
    from mechassay.adversarial.pools import draw_pools
    from mechassay.runs.folder import check_can_write, write_text
    from mechassay.runs.named_circuits import NamedCircuit
    from mechassay.runs.truths import task_named

    if output is not None:
        check_can_write(output)
    named, chosen = NamedCircuit.parse(circuit), task_named(task)
    try:
        loaded = load(model, dtype, device, prepend_bos)
        found = _circuit(named, loaded, model, chosen, counterfactual, train_limit, seed)
        pools = draw_pools(chosen, loaded, n_clean, n_corrupted, split=split, counterfactual=counterfactual, seed=seed)
        result = searching.search(loaded, found, *pools, budget=budget, starts=starts, restarts=restarts, compare=compare, seed=seed)
    except KeyboardInterrupt:
        raise _interrupted("nothing was found yet") from None
    _say(result)
    if output is not None:
        about = {"model": model, "task": task, "circuit": circuit, "split": split, "seed": seed, "budget": budget}
        write_text(output, json.dumps({**about, **result.as_dict()}, indent=1, ensure_ascii=False))
    if not result.finished:
        raise _interrupted("what was found so far is above" + (f" and in {output}" if output is not None else ""))


def _interrupted(kept: str) -> SystemExit:
    """The end after Ctrl-C. Unlike other commands, a search does not go on where it was; so the common message is not for it."""
    typer.echo(f"mechassay: interrupted; {kept}. The same command begins anew.", err=True)
    return SystemExit(INTERRUPTED)


def _circuit(
    named: NamedCircuit, model: Model, model_name: str, task: Task, counterfactual: str | None, train_limit: int, seed: int
) -> Circuit:
    from mechassay.circuits.methods import METHODS
    from mechassay.runs.named_circuits import find_circuits

    def score(methods: Sequence[str]) -> dict[str, Scores]:
        pairs = task.pairs("train", model, limit=train_limit, counterfactual=counterfactual, seed=seed)
        return {text: METHODS.make(text).score(model, pairs) for text in methods}

    return find_circuits([named], model, model_name, "counterfactual", seed, score)[0].circuit


def _say(result: SearchResult) -> None:
    from rich.console import Console

    from mechassay.report.grids import Grid, print_grids

    rows = tuple(
        (f"{number}", f"{climb.kl:.6g}", f"{climb.steps[0].kl:.6g}", f"{len(climb.steps) - 1}", "yes" if climb.is_local_maximum else "no")
        for number, climb in enumerate(result.climbs, start=1)
    )
    console, best = Console(), result.best
    print_grids([Grid("Climbs, in nats", ("climb", "divergence", "at its start", "changes", "local maximum"), rows)], console)

    def line(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False, highlight=False)

    line(f"clean      {best.clean.text}")
    line(f"corrupted  {best.corrupted.text}")
    for step in best.steps:
        line(f"  {step.kl:.6g}  {step.change or 'start'}")
    line(f"L{str(result)[1:]}")
