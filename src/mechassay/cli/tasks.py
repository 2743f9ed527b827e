"""`mechassay tasks`: which tasks there are, and what their pairs look like."""

from __future__ import annotations

from typing import Annotated

import typer

from mechassay.cli.options import SeedOption

app = typer.Typer(help="List tasks and show their pairs.", no_args_is_help=True)


@app.command("list")
def list_tasks() -> None:
    """Tasks with their counterfactuals and splits."""
    from rich.console import Console
    from rich.table import Table

    from mechassay.tasks import SPLITS, TASKS, load_task

    table = Table("task", "counterfactuals (* default)", "splits")
    for name in TASKS.names():
        task = load_task(name)
        kinds = [f"{kind}{' *' if kind == task.default_counterfactual else ''}" for kind in task.counterfactuals]
        table.add_row(name, "\n".join(kinds), "\n".join(SPLITS))
    Console().print(table)


@app.command("show")
def show_task(
    name: Annotated[str, typer.Argument(help="Task, see `mechassay tasks list`.")],
    split: Annotated[str, typer.Option(help="train, validation, test or private.")] = "train",
    limit: Annotated[int, typer.Option(help="How many pairs.")] = 5,
    counterfactual: Annotated[str | None, typer.Option(help="Kind of counterfactual; the task's default if not given.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Filter to what this model's tokenizer can compare, and show tokens.")] = None,
    seed: SeedOption = 0,
    private_seed: Annotated[int | None, typer.Option(help="Seed of the private split, which its keeper alone knows.")] = None,
) -> None:
    """Print some pairs of a task; with a model, their tokens side by side."""
    from rich.console import Console
    from rich.markup import escape

    from mechassay.cli.options import load
    from mechassay.tasks import load_task

    console = Console(soft_wrap=True)
    loaded = load(model, "float32", "cpu") if model else None
    pairs = load_task(name).pairs(split, loaded, limit=limit, counterfactual=counterfactual, seed=seed, private_seed=private_seed)
    batch = loaded.batch(pairs) if loaded else None
    for row, pair in enumerate(pairs):
        console.print(f"[bold]{escape(pair.id)}[/bold]  answer {escape(repr(pair.answers))}  foil {escape(repr(pair.foils))}")
        if batch is None or loaded is None or loaded.tokenizer is None:
            console.print(f"  clean           {escape(pair.clean)}\n  counterfactual  {escape(pair.counterfactual)}")
            continue
        tokens = loaded.tokenizer
        real = batch.mask[row]
        for label, ids in (("clean", batch.clean[row][real]), ("counterfactual", batch.counterfactual[row][real])):
            other = (batch.counterfactual if label == "clean" else batch.clean)[row][real]
            shown = [f"[reverse]{escape(tokens.decode([a]))}[/reverse]" if a != b else escape(tokens.decode([a])) for a, b in zip(ids.tolist(), other.tolist(), strict=True)]
            console.print(f"  {label:15} {'|'.join(shown)}")
