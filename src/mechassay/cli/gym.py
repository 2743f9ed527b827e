"""`mechassay gym`: minimal pairs of sentences, and which features make a model tell them apart."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mechassay.cli.command import DeviceOption, DtypeOption, command, seed_option
from mechassay.cli.names import check_names
from mechassay.cli.output import JsonOption, say, show_columns, tell
from mechassay.gym.names import ALL_TASKS, task_names
from mechassay.gym.options import TASKS, DirectionsOptions, GymCheckOptions, GymOptions

app = typer.Typer(help="Linear features on tasks of minimal pairs.", no_args_is_help=True)
app.command("run")(command(GymOptions))
app.command("evaluate")(command(DirectionsOptions, arguments=("directions",)))
app.command("check")(command(GymCheckOptions))


@app.command("validate")
def validate(
    folder: Annotated[Path, typer.Argument(help="Directions, as `gym run` leaves them.")],
    task: Annotated[str, typer.Option("--task", "-t", help="Gym task that they are for.")],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Model that they have to be about.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """List every problem of a folder of directions; nothing in it is executed."""
    check_names("gym tasks", [task])
    from mechassay.gym.causalgym import load_gym_task
    from mechassay.gym.directions import read_directions
    from mechassay.interventions.site import ModelShape
    from mechassay.models.model import load_model
    from mechassay.utils.files import Problems

    regions, problems = load_gym_task(task).tested, Problems()
    shape = None if model is None else ModelShape.of(load_model(model))
    read_directions(folder, regions, shape, model or "", problems)
    tell(folder, problems, json, what="folder")


@app.command("list")
def list_tasks(json: JsonOption = False) -> None:
    """The gym tasks there are."""
    from mechassay.gym.causalgym import list_gym_tasks

    less = ("lengths", "regions", "sentences", "labels", "family")
    show_columns(list_gym_tasks().columns(), json, less)


@app.command("show")
def show_task(
    task: Annotated[str, typer.Argument(help="Gym task, or a YAML file with one.")],
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "train",
    limit: Annotated[int, typer.Option(help="Interchanges, swaps included.", min=2)] = 6,
    seed: Annotated[int, typer.Option(help="Another seed, other pairs.", min=0)] = 0,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Only continuations that are one token for this model."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Interchanges of a task: sentences, labels, types, and the regions that are tested."""
    check_names("gym tasks", [task])
    from mechassay.gym.causalgym import load_gym_task
    from mechassay.models.model import load_model

    gym_task = load_gym_task(task)
    loaded = None if model is None else load_model(model)
    pairs = gym_task.interchanges(split, loaded, limit=limit, seed=seed)
    if not json:
        say(f"{gym_task.name} ({gym_task.family}): {gym_task.about}")
        say(f"regions: {', '.join(gym_task.tested)}; lengths: {gym_task.lengths}")
    show_columns(pairs.columns(), json)


SuiteArgument = Annotated[Path, typer.Argument(help="A test suite of SyntaxGym, .json.")]


@app.command("suite")
def suite_accuracy(
    suite: SuiteArgument,
    model: Annotated[str, typer.Option("--model", "-m", help="Model to run.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Surprisals of all regions to write, .csv."),
    ] = None,
    bos: Annotated[
        bool, typer.Option("--bos", help="Begin sentences with the tokenizer's BOS token.")
    ] = False,
    device: DeviceOption = "cpu",
    dtype: DtypeOption = "float32",
    seed: Annotated[int, seed_option("the control's random weights")] = 0,
    json: JsonOption = False,
) -> None:
    """Surprisals of a suite's regions in a model: in which share of items do its predictions hold?

    Beside it stands the same model with random weights.
    """
    from csv import writer
    from io import StringIO

    from mechassay.gym.suites import measure_suite
    from mechassay.gym.syntaxgym import read_suite
    from mechassay.models.model import load_model
    from mechassay.utils.display import BAR
    from mechassay.utils.files import check_ending, write_text

    file = None if output is None else check_ending(output, ".csv")
    read = read_suite(suite)
    loaded = load_model(model, device=device, dtype=dtype, prepend_bos=bos)
    result = measure_suite(loaded, read, seed=seed, progress=BAR)
    show_columns(result.columns(), json, ("items",))
    if file is not None:
        table = StringIO()
        rows = writer(table)
        rows.writerow(("item", "condition", "region", "text", "bits"))
        for place, item in enumerate(read.items):
            for column, condition in enumerate(read.conditions):
                texts = read.contents[place][column]
                bits = result.surprisals[place, column].tolist()
                for name, text, x in zip(read.names, texts, bits, strict=True):
                    rows.writerow((item, condition, name, text, f"{x:.6g}"))
        typer.echo(f"Written: {write_text(file, table.getvalue())}")


@app.command("template")
def template(
    suite: SuiteArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Gym task to write, .yaml: gym run -t FILE.")
    ],
    first: Annotated[str, typer.Option(help="A grammatical condition.")] = "",
    second: Annotated[str, typer.Option(help="Another one.")] = "",
    region: Annotated[int, typer.Option(help="Number of the region that is predicted.")] = 0,
    together: Annotated[
        list[str] | None,
        typer.Option(help="Regions of one item: noun,verb. Repeat for several groups."),
    ] = None,
) -> None:
    """Make a gym task of a suite: sentences that take each region from any item.

    Without conditions they are those that the suite's predictions expect to be less surprising.
    """
    from mechassay.errors import BadUsage
    from mechassay.gym.suites import grammatical, template_of, write_template
    from mechassay.gym.syntaxgym import read_suite
    from mechassay.utils.files import check_ending

    file = check_ending(output, ".yaml")
    read = read_suite(suite)
    if any((first, second, region)) and not all((first, second, region)):
        raise BadUsage("--first, --second and --region: give all three or none.")
    chosen = (first, second, region) if first else grammatical(read)
    groups = [tuple(names.split(",")) for names in together or ()]
    task = write_template(file, template_of(read, *chosen, groups))
    say(f"{task.name}: {chosen[0]} and {chosen[1]}, labels of region {chosen[2]}")
    say(f"Written: {file}, {task.n_sentences:,} sentences of {len(read.items)} items")


@app.command("export")
def export(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write, one JSON row a line.")
    ],
    task: Annotated[
        list[str] | None, typer.Option("--task", "-t", help=f"{TASKS.help} All if not given.")
    ] = None,
    split: Annotated[str, typer.Option(help="train, validation (dev) or test.")] = "train",
    model: Annotated[
        str, typer.Option("--model", "-m", help="Model that takes each label as one token.")
    ] = "",
    limit: Annotated[
        int | None, typer.Option(help="Rows of a task; 400, 100 and 100 if not given.", min=2)
    ] = None,
    seed: Annotated[int, seed_option("the pairs")] = 0,
) -> None:
    """Write interchanges of gym tasks as rows of the public data set."""
    from json import dumps

    from mechassay.gym.causalgym import load_gym_task
    from mechassay.gym.sources import export_rows
    from mechassay.models.model import load_model
    from mechassay.utils.display import counted
    from mechassay.utils.files import write_text

    names = task_names(task or (ALL_TASKS,))
    check_names("gym tasks", names)
    loaded = load_model(model) if model else None
    tasks = [load_gym_task(name) for name in names]
    rows = [
        dumps(row, ensure_ascii=False)
        for row in export_rows(tasks, split, loaded, limit=limit, seed=seed)
    ]
    typer.echo(
        f"{write_text(output, chr(10).join(rows) + chr(10))}:"
        f" {counted(len(rows), 'row')} of {counted(len(tasks), 'task')}"
    )
