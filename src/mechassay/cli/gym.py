"""`mechassay gym`: minimal pairs of sentences, and which features make a model tell them apart."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mechassay.cli.command import command
from mechassay.cli.names import check_names
from mechassay.cli.output import JsonOption, say, show_columns, tell
from mechassay.gym.names import ALL_TASKS, task_names
from mechassay.gym.plan import TASKS, DirectionsPlan, GymCheckPlan, GymPlan

app = typer.Typer(help="Linear features on tasks of minimal pairs.", no_args_is_help=True)
app.command("run")(command(GymPlan))
app.command("evaluate")(command(DirectionsPlan, arguments=("directions",)))
app.command("check")(command(GymCheckPlan))


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


@app.command("train")
def train_model(
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Folder for the model; the same command again goes on there."
        ),
    ] = Path("runs/gym-train"),
    task: Annotated[
        list[str] | None, typer.Option("--task", "-t", help=f"{TASKS.help} All if not given.")
    ] = None,
    layers: Annotated[int, typer.Option(help="Layers.")] = 4,
    width: Annotated[int, typer.Option(help="Width of the residual stream.")] = 48,
    heads: Annotated[int, typer.Option(help="Heads of a layer.")] = 4,
    sentences: Annotated[int, typer.Option(help="Sentences of each task.")] = 3000,
    steps: Annotated[int, typer.Option(help="Optimiser steps.")] = 2000,
    checkpoint: Annotated[
        list[int] | None,
        typer.Option(help="Steps after which weights are kept, beside the last; repeat it."),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Sentences a step.")] = 64,
    rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 2e-3,
    seed: Annotated[
        int,
        typer.Option(min=0, max=2**62 - 1, help="Seed of the sentences and the first weights."),
    ] = 0,
) -> None:
    """Train a small GPT-NeoX on sentences of the train split of gym tasks.

    FOLDER is the model after the last step, FOLDER@step64 that after 64 (--checkpoint 64).
    """
    from mechassay.gym.causalgym import load_gym_task
    from mechassay.gym.training import GymTraining, train_gym_model

    training = GymTraining(
        layers=layers,
        width=width,
        heads=heads,
        sentences=sentences,
        steps=steps,
        checkpoints=tuple(checkpoint or ()),
        batch_size=batch_size,
        rate=rate,
        seed=seed,
    )
    tasks = [load_gym_task(name) for name in task_names(task or (ALL_TASKS,))]
    losses = train_gym_model(output, training, tasks=tasks)
    last = training.last_of(losses)
    typer.echo(f"loss: first {losses[0]:.3g}, last {last:.3g} nats a token")
    typer.echo(f"Written: {output}@" + f", {output}@".join(f"step{n}" for n in training.kept))
