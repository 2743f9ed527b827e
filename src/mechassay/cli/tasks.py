"""`mechassay tasks`: which tasks there are, and what their pairs look like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mechassay.cli.options import SeedOption

if TYPE_CHECKING:
    from mechassay.models.model import Model

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
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Filter to what this model's tokenizer can compare, and show tokens.")
    ] = None,
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
        texts = (escape(pair.clean), escape(pair.counterfactual))
        if batch is not None and loaded is not None:
            real = batch.mask[row]
            texts = _side_by_side(loaded, batch.clean[row][real].tolist(), batch.counterfactual[row][real].tolist())
        console.print(f"  clean           {texts[0]}\n  counterfactual  {texts[1]}")


def _side_by_side(model: Model, clean: list[int], other: list[int]) -> tuple[str, str]:
    """Both prompts as tokens with a bar between, those that differ shown in reverse."""
    from rich.markup import escape

    tokenizer = model.tokenizer
    assert tokenizer is not None
    shown = [[escape(str(tokenizer.decode([token]))) for token in tokens] for tokens in (clean, other)]
    marked = [[text if a == b else f"[reverse]{text}[/reverse]" for text, a, b in zip(line, clean, other, strict=True)] for line in shown]
    return "|".join(marked[0]), "|".join(marked[1])
