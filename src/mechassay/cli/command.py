"""A command made of a job: its options are the job's fields, and where it is run.

Help, flags and defaults stand in the job alone (`runs.job.Option`). A choice is checked by the job,
whose message names the nearest valid one; shells complete choices and the names of models, tasks
and methods.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from mechassay.circuits.methods.spec import number_or_share
from mechassay.errors import BadUsage
from mechassay.models.model import check_device
from mechassay.runs import options
from mechassay.runs.execute import Executor, Here, Processes, batches_of, done, prepare
from mechassay.runs.job import Interrupted, Option, Results, job_of, options_of
from mechassay.utils.display import counted

ENGINES = ("here", "processes", "ray")
HOW, WHERE = "How", "Where it runs"
"""Panels of the help below the first one."""
DeviceOption = Annotated[
    str,
    typer.Option("--device", rich_help_panel=WHERE, help="auto, cpu, cuda, cuda:1, mps."),
]
DtypeOption = Annotated[str, typer.Option("--dtype", rich_help_panel=HOW, help=options.DTYPE.help)]


def seed_option(what: str) -> Any:
    """The option of a command's seed; see `options.seed_of`."""
    about = options.seed_of(what)
    return typer.Option(
        "--seed", min=about.least, max=about.most, rich_help_panel=HOW, help=about.help
    )


def _where(*flags: str, **more: Any) -> Any:
    return typer.Option(*flags, rich_help_panel=WHERE, **more)


RUNNER: Mapping[str, Any] = {
    "output": Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Folder for results; the same command again goes on there."
        ),
    ],
    "device": DeviceOption,
    "workers": Annotated[
        int, _where("--workers", min=1, help="Worker processes that share the cells.")
    ],
    "engine": Annotated[
        str,
        _where(
            "--engine",
            help="here, processes, or ray: a cluster (pip install 'mechassay\\[ray]').",
            autocompletion=lambda: list(ENGINES),
        ),
    ],
    "address": Annotated[
        str, _where("--address", help="Of the Ray cluster: auto, or its head's host:port.")
    ],
    "num_gpus": Annotated[
        float, _where("--num-gpus", min=0, help="GPUs of each Ray worker; 0.5 shares one.")
    ],
    "only_plan": Annotated[
        bool,
        _where("--only-plan", help="Write plan.json and stop; see `mechassay run-cells`."),
    ],
}
"""Where a job is run; the same for every job."""

PANELS = {"planned": HOW, "free": "Limits", "secret": "Private data"}
"""Panels of the help, by role, in their order. What is required, what `Option.first` says and
--output stand before them, in the panel without a name of its own.
"""

DEFAULTS: Mapping[str, Any] = {
    "device": "cpu",
    "workers": 1,
    "engine": "",
    "address": "auto",
    "num_gpus": 0.0,
    "only_plan": False,
}


def command(
    job: type[Any],
    *,
    output: str,
    help: str = "",
    without: tuple[str, ...] = (),
    arguments: tuple[str, ...] = (),
    defaults: Mapping[str, Any] | None = None,
    change: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> Callable[..., None]:
    """A function for Typer that runs a job.

    Args:
        output: default folder of results.
        help: of the command; the first paragraph of the job's docstring by default.
        without: fields that are no options.
        arguments: fields that are typed without a name, and have to be given.
        defaults: other defaults than the job's.
        change: what was typed, by field, before the job is made of it.
    """
    parameters, hints = _parameters(job, without, arguments, dict(defaults or {}))
    fixed = {name: value for name, value in (defaults or {}).items() if name in without}
    for name, annotation in RUNNER.items():
        default = Path(output) if name == "output" else DEFAULTS[name]
        parameters.append(_keyword(name, annotation, default))

    def run(**typed: Any) -> None:
        where = {name: typed.pop(name) for name in RUNNER}
        plain = {name: _plain(value, hints[name]) for name, value in typed.items()}
        fields = {**fixed, **{name: _number(job, name, value) for name, value in plain.items()}}
        execute(job(**change(fields)), **where)

    described = help or inspect.cleandoc(job.__doc__ or "").split("\n\n")[0]
    run.__doc__ = described.replace("\n", " ")
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def execute(
    job: Any,
    *,
    output: Path,
    device: str,
    workers: int,
    engine: str,
    address: str,
    num_gpus: float,
    only_plan: bool,
) -> None:
    """Run a job, print its results and the paths of its pages, and exit with 1 if a cell failed."""
    executor = executor_of(engine, workers, address, num_gpus)
    here = not (executor.remote or only_plan)
    if here:
        check_device(device)
    bench = prepare(job, output, device=device, here=here)
    for note in job.notes():
        typer.echo(f"note: {note}", err=True)
    if only_plan:
        n = len(batches_of(job, bench.folder))
        batches = counted(n, "batch", "batches")
        typer.echo(f"{output}: {batches} to do: mechassay run-cells {output} --part 1/{n}")
        return
    try:
        results = done(job, bench, executor)
    except Interrupted as stopped:
        # The common message, that the same command goes on, is not for such a cell.
        typer.echo(f"mechassay: interrupted; {stopped}", err=True)
        raise SystemExit(stopped.code) from None
    finish(job, results)


def finish(job: Any, results: Results) -> None:
    """Print and write what there is; exit with 1 if a cell or a control failed."""
    from mechassay.results.console import standard_output
    from mechassay.results.sections import broken

    wrong = [(record, text) for record in results.records for text in broken(record)]
    for record, text in wrong:
        typer.echo(f"mechassay: controls fail: {record.method.name}: {text}", err=True)
    job.show(results, standard_output())
    typer.echo(f"Report: {job.report(results)}")
    failed = [failure for failure in results.failures if failure.status == "failed"]
    for failure in failed:
        cell = ", ".join(dict.fromkeys(failure.cell.values()))
        typer.echo(f"mechassay: {cell}: {failure.message}", err=True)
    if failed or wrong:
        raise typer.Exit(1)


def executor_of(engine: str, workers: int, address: str, num_gpus: float) -> Executor:
    """Where cells are done; several workers are processes unless an engine is named.

    Raises:
        UnknownName: no such engine.
    """
    from mechassay.errors import one_of

    chosen = one_of("engine", engine or ("here" if workers == 1 else "processes"), ENGINES)
    if chosen == "ray":
        from mechassay.runs.execute import Ray

        return Ray(address, workers, num_gpus)
    return Here() if chosen == "here" else Processes(workers)


def stored_job(folder: Path, **changes: Any) -> Any:
    """The job of a folder; see `job_of`."""
    from mechassay.runs.folder import RunFolder

    return job_of(RunFolder.existing(folder).plan(), **changes)


def _parameters(
    job: type[Any],
    without: tuple[str, ...],
    arguments: tuple[str, ...],
    defaults: dict[str, Any],
) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    hints, about = get_type_hints(job), options_of(job)
    parameters: list[inspect.Parameter] = []
    types_of: dict[str, Any] = {}
    places: dict[str, int] = {}
    for field in dataclasses.fields(job):
        base, option = hints[field.name], about[field.name]
        types_of[field.name] = base
        if field.name in without:
            continue
        if field.name in arguments:
            argument = Annotated[_typed(base)[0], typer.Argument(help=option.help)]
            parameters.append(_keyword(field.name, argument, inspect.Parameter.empty))
            continue
        default = defaults.get(field.name, field.default)
        first = option.first or default is dataclasses.MISSING
        panel = None if first else PANELS[option.role]
        parameters.append(_parameter(field.name, base, option, default, panel))
        places[field.name] = 0 if first else 1 + list(PANELS).index(option.role)
    parameters.sort(key=lambda parameter: places.get(parameter.name, 0))
    return parameters, types_of


def _parameter(
    name: str, base: Any, about: Option, default: Any, panel: str | None
) -> inspect.Parameter:
    typed, choices = (str, ()) if about.none else _typed(base)
    flags = about.flags or (f"--{name.replace('_', '-')}",)
    listed = f"{', '.join(map(str, choices))}. " if choices else ""
    more: dict[str, Any] = {"help": f"{listed}{about.help}".strip(), "rich_help_panel": panel}
    offered = _offered(about.complete, choices)
    if offered is not None:
        more["autocompletion"] = offered
    if default is dataclasses.MISSING:
        default = inspect.Parameter.empty
    elif isinstance(default, tuple):
        default = list[Any](default)
    elif about.none:
        default = about.none if default is None else str(default)
    return _keyword(name, Annotated[typed, typer.Option(*flags, **more)], default)


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _typed(base: Any) -> tuple[Any, tuple[Any, ...]]:
    """What Typer is to read for a field's type, and its choices."""
    if get_origin(base) is Literal:
        return str, get_args(base)
    if get_origin(base) is tuple:
        inner, choices = _typed(get_args(base)[0])
        return list[inner], choices
    if get_origin(base) in (Union, types.UnionType):
        parts = [part for part in get_args(base) if part is not type(None)]
        if set(parts) == {int, float}:
            # A number of edges, or a share of them: 1 and 1.0 differ.
            return str | None if len(parts) < len(get_args(base)) else str, ()
        inner, choices = _typed(parts[0])
        return inner | None, choices
    return base, ()


def _plain(value: Any, base: Any) -> Any:
    if isinstance(value, list):
        return tuple(_plain(each, get_args(base)[0]) for each in value)
    if isinstance(value, str) and {int, float} <= set(get_args(base)):
        return number_or_share(value)
    return value


def _number(job: type[Any], name: str, value: Any) -> Any:
    """A whole number, of an option that has a word for None.

    Raises:
        BadUsage: it is neither.
    """
    word = options_of(job)[name].none
    if not word or not isinstance(value, str):
        return value
    if value == word:
        return None
    if not value.removeprefix("-").isdecimal():
        raise BadUsage(f"{name} must be a whole number or {word}; got {value!r}.")
    return int(value)


def _offered(what: str, choices: tuple[Any, ...]) -> Callable[[str], list[str]] | None:
    """What shells offer for the beginning of a word."""
    if choices:
        return lambda incomplete: [
            str(each) for each in choices if str(each).startswith(incomplete)
        ]
    if what not in ("models", "tasks", "methods", "metrics"):
        return None

    def names(incomplete: str) -> list[str]:
        from mechassay.circuits.evaluation.metrics import METRICS
        from mechassay.circuits.methods import METHODS
        from mechassay.models.loading import gym_model_names, truth_names
        from mechassay.models.weight_files import packaged_names
        from mechassay.tasks import TASKS

        known = {
            "models": [*packaged_names(), *truth_names(), *gym_model_names(), "truth"],
            "tasks": TASKS.names(),
            "methods": METHODS.names(),
            "metrics": METRICS.names(),
        }
        return [name for name in known[what] if name.startswith(incomplete)]

    return names
