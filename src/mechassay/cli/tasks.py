"""`mechassay tasks`: tasks, their pairs, what would be dropped, and whether models can do them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mechassay.cli.command import command, seed_option
from mechassay.cli.names import check_names
from mechassay.cli.output import JsonOption, say, show
from mechassay.runs.accuracy import AccuracyExperiment
from mechassay.utils.display import counted, first_sentence

if TYPE_CHECKING:
    from mechassay.models.model import Model
    from mechassay.results.page import TextTable
    from mechassay.tasks.load import PairsCheck


app = typer.Typer(
    help="List tasks, show and check their pairs, and score models on them.", no_args_is_help=True
)

TaskArgument = Annotated[
    str,
    typer.Argument(
        help=(
            "Task, with settings if wanted (mcqa:n_choices=6), or a file: .jsonl, .json, .csv,"
            " .tsv."
        )
    ),
]
SplitOption = Annotated[str, typer.Option(help="train, validation, test or private.")]
CounterfactualOption = Annotated[
    str | None, typer.Option(help="Kind of counterfactual; the task's default if not given.")
]
PrivateSeed = Annotated[
    int | None, typer.Option(help="Seed of the private split, which its keeper alone knows.")
]


@app.command("list")
def list_tasks(json: JsonOption = False) -> None:
    """Tasks with their counterfactuals (the default first), splits and sizes.

    Splits that are larger in the paper are read from its public data by the settings source=hub or
    questions=hub, or from a file.
    """
    from mechassay.tasks import TASKS, load_task
    from mechassay.tasks.task import SPLITS, settings_of

    tasks = [load_task(name) for name in TASKS.names()]
    rows = [
        {
            "name": task.name,
            "about": first_sentence(TASKS.about(task.name)),
            "counterfactuals": sorted(
                task.counterfactuals, key=lambda kind: kind != task.default_counterfactual
            ),
            "pairs": {split: task.sizes[split] for split in SPLITS if split in task.sizes},
            "larger in the paper": dict(task.published_sizes),
            "settings": settings_of(task),
            "other names": TASKS.other_names(task.name),
        }
        for task in tasks
    ]
    show(rows, json, ("counterfactuals", "settings", "larger in the paper"))


@app.command("show")
def show_task(
    name: TaskArgument,
    split: SplitOption = "train",
    limit: Annotated[int, typer.Option(help="How many pairs.")] = 5,
    counterfactual: CounterfactualOption = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="Filter to what this model's tokenizer can compare, and show tokens.",
        ),
    ] = None,
    keep: Annotated[
        str,
        typer.Option(
            help="all; or base, counterfactual, both: only where the model answers those right."
        ),
    ] = "all",
    seed: Annotated[int, seed_option("the examples")] = 0,
    private_seed: PrivateSeed = None,
) -> None:
    """Print some pairs of a task; with a model, their tokens side by side."""
    check_names("tasks", [name])
    from rich.console import Console
    from rich.markup import escape

    from mechassay.errors import one_of
    from mechassay.models.model import load_model
    from mechassay.prompts.tokenization import encode
    from mechassay.tasks import KEEP, load_task

    console = Console(soft_wrap=True)
    task = load_task(name)
    loaded = load_model(model) if model else None
    pairs = task.pairs(
        split,
        loaded,
        limit=limit,
        counterfactual=counterfactual,
        keep=one_of("filter", keep, KEEP),
        seed=seed,
        private_seed=private_seed,
        fewer=True,
    )
    batch = loaded.batch(pairs) if loaded else None
    clean: list[int] = []
    for row, pair in enumerate(pairs):
        console.print(
            f"[bold]{escape(pair.id)}[/bold]  answer {_texts(pair.answers)}  foil"
            f" {_texts(pair.foils)}"
        )
        texts = (_plain(pair.clean), _plain(pair.counterfactual))
        if batch is not None and loaded is not None:
            real = batch.mask[row]
            clean = batch.clean[row][real].tolist()
            texts = _side_by_side(loaded, clean, batch.counterfactual[row][real].tolist())
        console.print(f"  clean           {texts[0]}\n  counterfactual  {texts[1]}")
        if loaded is not None and loaded.tokenizer is not None:
            again = [*loaded.prepend, *encode(loaded.tokenizer, [pair.clean])[0]]
            if clean != again:  # cut or written on
                console.print(f"  clean, ids      {' '.join(map(str, clean))}")
        if batch is not None and loaded is not None:
            console.print(
                f"  compared        {_tokens(loaded, batch.answers[row].tolist())} against"
                f" {_tokens(loaded, batch.foils[row].tolist())}"
            )
    for reason, count in pairs.dropped.items():
        console.print(f"dropped on the way: {count} {escape(reason)}")
    for about, text in pairs.notes.items():
        console.print(f"{escape(about)}: {escape(text)}")


@app.command("check")
def check_task(
    name: TaskArgument,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Model whose tokenizer decides what can be compared."),
    ] = None,
    counterfactual: CounterfactualOption = None,
    limit: Annotated[
        int | None, typer.Option(help="Examples to look at in each split; all if not given.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write what was found as JSON.")
    ] = None,
) -> None:
    """Say whether a file or task has enough prompts for a verdict, and what cannot be used."""
    check_names("tasks", [name])
    from mechassay.models.model import load_model
    from mechassay.results.console import print_tables, print_text, standard_output
    from mechassay.tasks.load import check_pairs
    from mechassay.utils.display import BAR
    from mechassay.utils.files import write_text

    loaded = load_model(model) if model else None
    check = check_pairs(name, loaded, counterfactual=counterfactual, limit=limit, progress=BAR)
    print_text(check.conclusion, standard_output())
    print_tables([_counts(check)], standard_output(), "--output")
    for title, findings in (("dropped", check.total.dropped), ("note", check.total.notes)):
        for reason, counts in findings.items():
            rows = ", ".join(counts.ids) + (", ..." if counts.count > len(counts.ids) else "")
            say(f"{title}: {counts.count:,} {reason} ({rows}): {counts.message}")
    for name_of, text in check.remarks.items():
        say(f"{name_of}: {text}")
    fields = ", ".join(f"{field} ({count:,})" for field, count in check.total.fields.items())
    say(f"fields: {fields or 'none; no value of a column is a word of its prompt'}")
    if output is not None:
        write_text(output, json.dumps(check.as_dict(), indent=1, ensure_ascii=False))


def _counts(check: PairsCheck) -> TextTable:
    from mechassay.results.page import TextTable

    rows: list[tuple[str, ...]] = []
    for split, counts in (*check.splits.items(), ("all", check.total)):
        lengths = (
            "" if counts.lengths is None else ", ".join(f"{length:g}" for length in counts.lengths)
        )
        dropped = counts.rows - counts.usable
        counted_rows = (counts.rows, counts.usable, counts.groups, dropped)
        rows.append((split, *(f"{n:,}" for n in counted_rows), lengths))
    headings = ("split", "rows", "usable", "groups", "dropped", "tokens (least, median, most)")
    return TextTable.of(f"{check.task}, {check.counterfactual}", headings, rows)


app.command("score")(
    command(AccuracyExperiment, positional="tasks", defaults=AccuracyExperiment.typed)
)


@app.command("export")
def export(
    name: TaskArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write, one JSON row a line.")
    ],
    split: SplitOption = "test",
    limit: Annotated[
        int | None, typer.Option(help="How many; the whole split if not given.")
    ] = None,
    seed: Annotated[int, seed_option("the examples")] = 0,
    private_seed: PrivateSeed = None,
) -> None:
    """Write a task's examples in the schema of its public data set."""
    from mechassay.errors import BadUsage
    from mechassay.tasks import load_task
    from mechassay.tasks.hub_datasets import PublicTask
    from mechassay.utils.files import write_text

    task = load_task(name)
    if not isinstance(task, PublicTask):
        raise BadUsage(f"{task.name} has no public schema to write.")
    rows = task.rows(split, limit=limit, seed=seed, private_seed=private_seed)
    write_text(output, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    typer.echo(f"{output}: {counted(len(rows), 'row')}")


SHOWN = 6


def _texts(texts: tuple[str, ...]) -> str:
    from rich.markup import escape

    text = ", ".join(map(repr, texts[:SHOWN]))
    return escape(text + (f" and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""))


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text.replace("\n", "\\n"))


def _tokens(model: Model, tokens: list[int]) -> str:
    from mechassay.prompts.batch import NO_TOKEN

    assert model.tokenizer is not None
    return _texts(
        tuple(str(model.tokenizer.decode([token])) for token in tokens if token != NO_TOKEN)
    )


def _side_by_side(model: Model, clean: list[int], other: list[int]) -> tuple[str, str]:
    """Both prompts as tokens with a bar between, those that differ shown in reverse."""
    tokenizer = model.tokenizer
    assert tokenizer is not None
    facts = [
        [_plain(str(tokenizer.decode([token]))) for token in tokens] for tokens in (clean, other)
    ]
    marked = [
        [
            text if a == b else f"[reverse]{text}[/reverse]"
            for text, a, b in zip(line, clean, other, strict=True)
        ]
        for line in facts
    ]
    return "|".join(marked[0]), "|".join(marked[1])
