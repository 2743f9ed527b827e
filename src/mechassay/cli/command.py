"""A command made of an experiment: its options are the fields, and where the cells are measured.

Help, flags and defaults stand in the class of the experiment alone, or in that of its options
(`runs.options.Option`). Names are checked before the experiment and what it needs are imported
(`cli.names`), choices by the experiment; messages have the nearest valid one. Shells complete both.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from mechassay.cli.names import ENGINES, check_names, known_names
from mechassay.errors import BadUsage, one_of
from mechassay.runs import EXPERIMENTS, options
from mechassay.runs.options import Option, options_of

HOW, WHERE = "How", "Where it runs"
"""Panels of the help below the first one."""
DeviceOption = Annotated[
    str,
    typer.Option("--device", rich_help_panel=WHERE, help="auto, cpu, cuda, cuda:1, mps."),
]
DeviceMapOption = Annotated[
    str,
    typer.Option(
        "--device-map",
        rich_help_panel=WHERE,
        help="Instead of --device: auto, or a JSON file that maps modules to devices, cpu or disk.",
    ),
]
Tf32Option = Annotated[
    str,
    typer.Option(
        "--tf32",
        rich_help_panel=WHERE,
        help="TF32 on GPUs: on, off, or auto (for score products of half-precision models).",
    ),
]
CompiledOption = Annotated[
    bool,
    typer.Option(
        "--compiled/--not-compiled",
        rich_help_panel=WHERE,
        help="Compile the training steps of mask methods (torch.compile).",
    ),
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
        Path | None,
        typer.Option(
            "--output",
            "-o",
            show_default="runs/KIND-MODEL-TASK-HASH",
            help="Folder for results. Repeat the command to resume an interrupted run.",
        ),
    ],
    "device": DeviceOption,
    "device_map": DeviceMapOption,
    "tf32": Tf32Option,
    "compiled": CompiledOption,
    "workers": Annotated[
        int, _where("--workers", min=1, help="Worker processes; each takes the next batch.")
    ],
    "engine": Annotated[
        str,
        _where(
            "--engine",
            help="here, processes, or ray (a cluster; pip install 'mechassay\\[ray]').",
            autocompletion=lambda: list(ENGINES),
        ),
    ],
    "address": Annotated[
        str, _where("--address", help="Address of the Ray cluster: auto, or host:port of its head.")
    ],
    "num_gpus": Annotated[
        float, _where("--num-gpus", min=0, help="GPUs per Ray worker; 0.5 shares one between two.")
    ],
    "only_plan": Annotated[
        bool,
        _where("--only-plan", help="Write plan.json and exit; then use `mechassay run-cells`."),
    ],
}
"""Where an experiment is run; the same for every experiment."""

PLANNED: ContextVar[Callable[[Any, str], None] | None] = ContextVar("planned", default=None)
"""What is done with an experiment and its device in place of running it (`mechassay plan`)."""

PANELS = {"planned": HOW, "free": "Limits", "secret": "Private data"}
"""Panels of the help, by role, in their order. What is required, what `Option.first` says and
--output stand before them, in the panel without a name of its own.
"""

DEFAULTS: Mapping[str, Any] = {
    "output": None,
    "device": "cpu",
    "device_map": "",
    "tf32": "auto",
    "compiled": False,
    "workers": 1,
    "engine": "",
    "address": "auto",
    "num_gpus": 0.0,
    "only_plan": False,
}


POSITIONAL = "names"
"""The values that are typed without a name, see `command`."""


def command(
    experiment_type: type[Any],
    *,
    help: str = "",
    without: tuple[str, ...] = (),
    arguments: tuple[str, ...] = (),
    positional: str = "",
    defaults: Mapping[str, Any] | None = None,
    change: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> Callable[..., None]:
    """Return a function for Typer that runs an experiment, whose class is imported then.

    Args:
        experiment_type: the class of the experiment, or of its options; its `kind` is a name in
            `EXPERIMENTS`.
        help: of the command; the first paragraph of the class's docstring by default.
        without: fields that are no options.
        arguments: fields that are typed without a name, and have to be given.
        positional: a field whose values may be typed without a name, too.
        defaults: other defaults than those of the fields.
        change: what was typed, by field, before the experiment is made of it.
    """
    parameters, hints = _parameters(experiment_type, without, arguments, dict(defaults or {}))
    fixed = {name: value for name, value in (defaults or {}).items() if name in without}
    if positional:
        help_of = f"{options_of(experiment_type)[positional].help} Or files of pairs."
        typed_too = Annotated[list[str] | None, typer.Argument(help=help_of, show_default=False)]
        parameters.insert(0, _keyword(POSITIONAL, typed_too, None))
    for name, annotation in RUNNER.items():
        parameters.append(_keyword(name, annotation, DEFAULTS[name]))

    def run(**typed: Any) -> None:
        where = {name: typed.pop(name) for name in RUNNER}
        if more := typed.pop(POSITIONAL, None):
            typed[positional] = [*(typed[positional] or ()), *more]
        plain = {name: _plain(value, hints[name]) for name, value in typed.items()}
        fields = {
            **fixed,
            **{name: _number(experiment_type, name, value) for name, value in plain.items()},
        }
        if where["engine"]:
            one_of("engine", where["engine"], ENGINES)
        _check_typed(
            experiment_type, fields, here=where["engine"] != "ray" and not where["only_plan"]
        )
        experiment = EXPERIMENTS.load(experiment_type.kind)(**change(fields))
        if (planned := PLANNED.get()) is not None:
            planned(experiment, str(where["device"]))
            return
        from mechassay.cli.execution import run_and_show
        from mechassay.models.computing import computing

        with computing(where.pop("tf32"), compiled=where.pop("compiled")):
            run_and_show(experiment, **where)

    described = help or inspect.cleandoc(experiment_type.__doc__ or "").split("\n\n")[0]
    run.__doc__ = described.replace("\n", " ")
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    run.kind = experiment_type.kind  # pyright: ignore[reportFunctionMemberAccess]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _check_typed(experiment_type: type[Any], fields: Mapping[str, Any], *, here: bool) -> None:
    """Refuse names that nobody knows; models last, and only where the experiment is run here."""
    kinds = {
        name: about.complete
        for name, about in options_of(experiment_type).items()
        if name in fields
    }
    for name, kind in sorted(kinds.items(), key=lambda item: item[1] == "models"):
        value = fields[name]
        if kind == "gym tasks" and fields.get("source"):
            continue  # Tasks of a source are its own.
        if value and (here or kind != "models"):
            check_names(kind, value if isinstance(value, tuple) else (value,))


def _parameters(
    experiment_type: type[Any],
    without: tuple[str, ...],
    arguments: tuple[str, ...],
    defaults: dict[str, Any],
) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    hints, about = get_type_hints(experiment_type), options_of(experiment_type)
    parameters: list[inspect.Parameter] = []
    types_of: dict[str, Any] = {}
    places: dict[str, int] = {}
    for field in dataclasses.fields(experiment_type):
        base, option = hints[field.name], about[field.name]
        types_of[field.name] = base
        if field.name in without:
            continue
        if field.name in arguments:
            typed, choices = _typed(base)
            about_it = f"{_listed(choices)}{option.help}"
            argument = Annotated[typed, typer.Argument(help=about_it)]
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
    text = f"{_listed(choices)}{about.help}".strip()
    more: dict[str, Any] = {"help": text, "rich_help_panel": panel}
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


def _listed(choices: tuple[Any, ...]) -> str:
    return f"{', '.join(map(str, choices))}. " if choices else ""


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
        return tuple(_plain(part, get_args(base)[0]) for part in value)
    if isinstance(value, str) and {int, float} <= set(get_args(base)):
        from mechassay.circuits.methods.spec import number_or_share

        return number_or_share(value)
    return value


def _number(experiment_type: type[Any], name: str, value: Any) -> Any:
    """A whole number, of an option that has a word for None."""
    word = options_of(experiment_type)[name].none
    if not word or not isinstance(value, str):
        return value
    if value == word:
        return None
    if not value.removeprefix("-").isdecimal():
        raise BadUsage(f"{name} must be a whole number or {word}; got {value!r}.")
    return int(value)


def _offered(kind: str, choices: tuple[Any, ...]) -> Callable[[str], list[str]] | None:
    """What shells offer for the beginning of a word."""
    if choices:
        return lambda incomplete: [
            str(choice) for choice in choices if str(choice).startswith(incomplete)
        ]
    if kind not in ("models", "tasks", "methods", "metrics"):
        return None
    return lambda incomplete: [name for name in known_names(kind) if name.startswith(incomplete)]
