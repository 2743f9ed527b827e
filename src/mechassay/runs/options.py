"""How a field of an experiment is typed at the command line, and options that several have.

Nothing that runs models is imported here, or in the modules `options` of the rooms, which have the
fields of experiments: a command line prints its help, and what is wrong with what was typed, at
once.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_origin, get_type_hints

from mechassay.errors import BadUsage
from mechassay.tasks import MOST_PAIRS

Role = Literal["planned", "free", "secret"]
DEFINITIONS = "definitions"
"""The part of plan.json that says which version each definition had that the options name."""


@dataclass(frozen=True)
class Option:
    """How a field of an experiment is typed at the command line.

    Attributes:
        help: one or two sentences.
        flags: "--model", "-m"; the field's own name if there are none.
        least, most: of numbers.
        complete: what is named, which shells complete and the command line checks: "models",
            "tasks", "methods", "metrics", "gym tasks", "gym methods", "measurements", "files" or
            "circuits". Of files, and of circuits in files, the content belongs to the identity of a
            cell.
        role: "planned", "free" or "secret", see the module.
        none: the word for None, of a number whose command has another default: "all".
        first: whether it stands in the first panel of the help, as options that are required do.
    """

    help: str = ""
    flags: tuple[str, ...] = ()
    least: int | float | None = None
    most: int | float | None = None
    complete: str = ""
    role: Role = "planned"
    none: str = ""
    first: bool = False


def option(help: str, *flags: str, **more: Any) -> Option:
    """An `Option` in one line, for `Annotated`."""
    return Option(help, flags, **more)


def limit(help: str, *flags: str, least: int = 1, **more: Any) -> Option:
    """A number of examples: a mistyped one ends with a line, and not with all memory."""
    return Option(help, flags, least=least, most=MOST_PAIRS, **more)


def options_of(experiment: Any) -> dict[str, Option]:
    """The fields of an experiment, or of its class, with their options."""
    return _options_of(experiment if isinstance(experiment, type) else type(experiment))


@cache
def _options_of(kind: type) -> dict[str, Option]:
    hints = get_type_hints(kind, include_extras=True)
    about = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {
        field.name: next((x for x in about[field.name] if isinstance(x, Option)), Option())
        for field in dataclasses.fields(kind)  # pyright: ignore[reportArgumentType]
    }


def check_ranges(experiment: Any) -> None:
    """Refuse a number that is less or more than its option allows, and a text in place of a tuple,
    whose letters would be taken for values.

    Raises:
        BadUsage: a field has one.
    """
    hints = get_type_hints(type(experiment))
    for name, about in options_of(experiment).items():
        value, least, most = getattr(experiment, name), about.least, about.most
        if get_origin(hints[name]) is tuple and isinstance(value, str):
            raise BadUsage(f"{name} must be a tuple, such as ({value!r},); got {value!r}.")
        if isinstance(value, int | float) and not (
            (least is None or value >= least) and (most is None or value <= most)
        ):
            allowed = f"{least} or more" if most is None else f"between {least} and {most}"
            raise BadUsage(f"{name} must be {allowed}; got {value}.")


_MODELS = "Packaged model, ground truth, hub id, local folder or .gguf file. Repeat for several{}."
_TASKS = "Task, see `mechassay tasks list`. Repeat for several{}."
MODELS = option(
    _MODELS.format("; `truth` stands for all ground truths, each on its own task"),
    "--model",
    "-m",
    complete="models",
)
TASKS = option(
    _TASKS.format("; a ground truth needs none"), "--task", "-t", complete="tasks", first=True
)
LOADED_MODELS = option(_MODELS.format(""), "--model", "-m", complete="models")
"""Where every model runs on every task: a ground truth is a model like any other."""
LOADED_TASKS = option(_TASKS.format(""), "--task", "-t", complete="tasks")
TASKS_OR_ALL = option(
    _TASKS.format("; all but those of ground truths if not given"),
    "--task",
    "-t",
    complete="tasks",
    first=True,
)
MODEL = option(
    "Packaged model, ground truth, hub id, local folder or .gguf file.",
    "--model",
    "-m",
    complete="models",
)
TASK = option(
    "Task, see `mechassay tasks list`; that of a ground truth has its name.",
    "--task",
    "-t",
    complete="tasks",
)
METHODS = option(
    "Method, with optional settings: eap-ig-inputs:steps=10,points=midpoint. Repeat for several."
    " The setting ablation=mean finds the circuit under another ablation than --ablation.",
    "--method",
    "-M",
    complete="methods",
    first=True,
)
COUNTERFACTUAL = option("Type of counterfactual prompts. Default: the task's own.")
OBJECTIVE = option(
    "Quantity that a circuit should preserve: logit_diff, prob_diff, kl, js, cross_entropy,"
    " accuracy. Default: the task's own.",
    complete="objectives",
)
UNFITTED_SPLIT = option(
    "Split to use: test if not given, and all rows of a file without a split column."
)
KEEP = option("Keep only pairs for which the model answers these prompts correctly.")
_ABLATED = (
    "What ablated edges carry: counterfactual, zero, {}mean or positional-mean (over the training"
    " pairs), or optimal (constants learned on them)."
)
ABLATION = option(_ABLATED.format("resample, "))
PAIR_ABLATION = option(_ABLATED.format(""))
"""Where prompts are paired by the design: resampling would pair them again."""
PAIRING = option(
    "Counterfactual prompts used to find circuits: matched (each prompt's own), random (another"
    " example's, of equal length) or same-template (random, from the same template)."
)
PROFILE = option("Definition of CPR and CMD; mib-2025 repeats the benchmark's code exactly.")
METRICS = option(
    "Additional metric: recovery, completeness or minimality, with settings:"
    " completeness:size=0.01. Default: all three if the true circuit is known. Repeat for several.",
    "--metric",
    complete="metrics",
)
DTYPE = option("float32, float64, bfloat16 or float16.", complete="dtypes")


def seed_of(what: str) -> Option:
    """The seed of all that a run draws.

    Args:
        what: that is, for the help.
    """
    return option(f"Seed of {what}.", least=0, most=2**62 - 1)


SEED = seed_of("the task's examples and of the bootstrap")
PRIVATE_SEED = option("Seed of the private split; never stored.", role="secret")
TRANSFER = option(
    "Measure scores, circuits, features and dictionaries that were found in another model; the"
    " headline names both models.",
    "--transfer",
)
BOS = option(
    "Prepend BOS to every prompt if the tokenizer does not (as TransformerLens does for GPT-2)."
)


MANY = 1_000
"""Layers, before a model is known."""


def layers_of(text: str, n_layers: int) -> tuple[int, ...] | None:
    """Layers as they are typed: all (None), numbers, or a slice of all as in Python.

    Raises:
        BadUsage: neither, or none of the model's layers.
    """
    if text == "all":
        return None
    try:
        if ":" in text:
            parts = [int(x) if x.strip() else None for x in text.split(":")]
            numbers = tuple(range(n_layers))[slice(*parts)]
        else:
            numbers = tuple(int(x) for x in text.split(","))
    except (ValueError, TypeError):
        raise BadUsage(
            f"Layers are all, numbers such as 0,3,6, or a slice such as ::3; got {text!r}."
        ) from None
    if not numbers:
        raise BadUsage(f"Layers {text} are none of the model's, 0 to {n_layers - 1}.")
    return numbers
