"""Wrong calls of public functions: one line that names the argument, its value, what is allowed."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import mechassay as ma
from mechassay.circuits import EAP, Circuit
from mechassay.errors import BadUsage, MechassayError, UnknownName
from mechassay.interventions.intervention import Interventions
from mechassay.testing.tiny import subject
from mechassay.utils.arguments import check_fields, checked, hints_of, in_words, is_allowed
from mechassay.utils.display import SILENT


class Wrong:
    """An object that no function takes."""

    def __repr__(self) -> str:
        return "Wrong()"


ROOMS = [ma, *(getattr(ma, name) for name in ma.__all__ if inspect.ismodule(getattr(ma, name)))]
WITHOUT_ARGUMENTS = {"list_gym_tasks", "list_methods", "list_metrics", "list_models"}
WITHOUT_ARGUMENTS |= {"list_objectives", "list_tasks"}


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield each public function, and each checked method of a public class."""
    known: set[int] = set()
    for room in ROOMS:
        for name in room.__all__:
            value = getattr(room, name)
            if inspect.isfunction(value):
                yield f"{room.__name__}.{name}", value
            elif inspect.isclass(value):
                for key in dir(value):
                    method = inspect.getattr_static(value, key)
                    own = getattr(method, "__func__", method)
                    if _is_checked(own) and id(own) not in known:
                        known.add(id(own))
                        yield f"{room.__name__}.{name}.{key}", own


def _is_checked(value: Any) -> bool:
    return inspect.isfunction(value) and value.__code__.co_name == "with_check"


def arguments() -> list[Any]:
    """Each argument of each public function, but those that take anything."""
    return [
        pytest.param(function, key, id=f"{name.removeprefix('mechassay.')}-{key}")
        for name, function in public_functions()
        if name.rpartition(".")[2] not in WITHOUT_ARGUMENTS
        for key, hint in hints_of(function).items()
        if not is_allowed(Wrong(), hint)
    ]


def right_value(hint: Any) -> Any:
    """A value that an annotation allows."""
    option = get_args(hint)[0] if get_origin(hint) in (Annotated, UnionType, Union) else hint
    if option is not hint:
        return right_value(option)
    kind = get_origin(option) or option
    if hasattr(option, "dim_str"):
        dtype = {"bool": torch.bool, "int": torch.int64}.get(option.__name__.split("[")[0].lower())
        zeros = torch.zeros([2] * len(option.dims), dtype=dtype or torch.float32)
        return zeros if option.array_type is torch.Tensor else zeros.numpy()
    if kind is tuple and Ellipsis not in get_args(option):
        return tuple(map(right_value, get_args(option)))
    plain: dict[Any, Any] = {str: "a", int: 1, float: 0.5, bool: True, Any: 1, Sequence: ()}
    plain |= {tuple: (), Mapping: {}, dict: {}, Path: Path("a")}
    if kind in plain:
        return plain[kind]
    return get_args(option)[0] if kind is Literal else Mock(spec=kind)


@pytest.mark.parametrize(("function", "key"), arguments())
def test_a_wrong_type_is_refused_in_one_line(function: Callable[..., Any], key: str) -> None:
    parameters = inspect.signature(function).parameters
    given: dict[str, Any] = {}
    positional: list[Any] = []
    for name, parameter in parameters.items():
        own = name == key
        if parameter.kind is parameter.VAR_POSITIONAL:
            positional += [Wrong()] if own else []
        elif parameter.kind is parameter.VAR_KEYWORD:
            given |= {"other": Wrong()} if own else {}
        elif own:
            given[name] = Wrong()
        elif parameter.default is parameter.empty:
            hint = hints_of(function).get(name, Any)
            given[name] = right_value(hint)
    if positional:
        positional = [*(given.pop(name) for name in list(given)), *positional]
    with pytest.raises(BadUsage) as caught:
        function(*positional, **given)
    message = str(caught.value)
    assert "\n" not in message
    assert f" as {key}; got " in message and "Wrong()" in message, message
    assert message.startswith(f"{function.__name__} takes "), message


def test_every_public_function_is_checked() -> None:
    plain = [
        name
        for name, function in public_functions()
        if not _is_checked(function) and inspect.signature(function).parameters
    ]
    assert plain == []
    assert len(arguments()) > 400


# Misuses that users made, each with its line.


def misuses(tmp_path: Path) -> dict[str, tuple[Callable[[], object], str]]:
    """Calls with wrong arguments, and what the message says."""
    case = subject("gpt2")
    model, batch, anything = case.model, case.batch, cast("Any", None)
    scores: Any = EAP().score(model, batch, progress=SILENT)
    circuit: Any = scores.top(3)
    name: Any = "gpt2"
    folder: Any = tmp_path
    return {
        "swapped in score": (
            lambda: EAP().score(cast("Any", batch), cast("Any", model)),
            "score takes a Model as model; got Batch(.*Are model and pairs swapped?",
        ),
        "swapped in intervene": (
            lambda: ma.intervene(cast("Any", batch), cast("Any", model), {}),
            "intervene takes a Model as model; got Batch(.*Are model and pairs swapped?",
        ),
        "swapped in sweep": (
            lambda: ma.sweep(cast("Any", batch), cast("Any", model), ()),
            "sweep takes a Model as model; got Batch(.*Are model and pairs swapped?",
        ),
        "swapped in patch": (
            lambda: ma.patch(cast("Any", batch), cast("Any", model)),
            "patch takes a Model as model; got Batch(.*Are model and pairs swapped?",
        ),
        "scores where a circuit belongs": (
            lambda: ma.circuits.evaluate(model, scores, batch),
            "evaluate takes a Circuit or a sequence of Circuits as circuit; got an EdgeScores"
            ".*scores.top(0.05) cuts one from scores.",
        ),
        "a circuit where scores belong": (
            lambda: ma.circuits.faithfulness_curve(model, circuit, batch),
            "as scores; got Circuit(.*a method's score(model, pairs) finds them.",
        ),
        "a number where a name belongs": (
            lambda: ma.load_method(cast("Any", 1)),
            "load_method takes a text as name; got 1.",
        ),
        "a name where a model belongs": (
            lambda: ma.patch(name, batch),
            "patch takes a Model as model; got 'gpt2'. load_model(name) loads one.",
        ),
        "a folder to read a record from": (
            lambda: ma.read_record(folder),
            "cannot be read",
        ),
        "a folder to write a page to": (
            lambda: curve_of(case).to_html(folder),
            "is a folder; give the path of the file to write.",
        ),
        "a page below a file": (
            lambda: curve_of(case).to_html(Path(__file__) / "page.html"),
            "cannot be written: a file, not a folder, is above it.",
        ),
        "a text where a number belongs": (
            lambda: ma.find_circuit(model, "ioi", limit=cast("Any", "5")),
            "find_circuit takes a whole number as limit; got '5'.",
        ),
        "an argument that is not there": (
            lambda: ma.find_circuit(model, "ioi", **cast("Any", {"test_limit": 5})),
            "Unknown argument of find_circuit 'test_limit'. Did you mean 'train_limit'?",
        ),
        "a number where a model's name belongs": (
            lambda: ma.find_circuit(cast("Any", 1), "ioi"),
            "find_circuit takes a text or a Model as model; got 1.",
        ),
        "an argument that is missing": (
            lambda: ma.patch(model, **cast("Any", {})),
            "patch: missing a required argument: 'pairs'; its arguments are model, pairs, part,",
        ),
        "a model in an experiment": (
            lambda: ma.run(ma.CircuitsExperiment((cast("Any", model),), ("ioi",))),
            "models of CircuitsExperiment takes a name; got Model(.*run(experiment, models={",
        ),
        "one name in an experiment": (
            lambda: ma.CircuitsExperiment(cast("Any", "gpt2"), ("ioi",)),
            "circuits run takes a sequence of texts as models; got 'gpt2'.",
        ),
        "a number to run": (
            lambda: ma.run(cast("Any", 1)),
            "run takes an Experiment as experiment; got 1.",
        ),
        "one answer of a pair": (
            lambda: ma.Pair("a", "x", "y", cast("Any", " b"), (" c",)),
            "Pair takes a sequence of texts as answers; got ' b'.",
        ),
        "nothing where prompts belong": (
            lambda: ma.generate(model, anything),
            "generate takes a sequence of texts, a text or a sequence of sequences of whole"
            " numbers as prompts; got None.",
        ),
    }


def curve_of(case: Any) -> Any:
    """A small curve, to be saved."""
    scores = EAP().score(case.model, case.batch, progress=SILENT)
    about: Any = {"fractions": (0.5, 1.0), "progress": SILENT}
    return ma.circuits.faithfulness_curve(case.model, scores, case.batch, **about)


def test_misuses_have_one_line_each(tmp_path: Path) -> None:
    wrong: dict[str, str] = {}
    for kind, (call, message) in misuses(tmp_path).items():
        with pytest.raises(MechassayError) as caught:
            call()
        line = str(caught.value)
        begin, _, end = message.partition(".*")
        if "\n" in line or begin not in line or end not in line:
            wrong[kind] = line
    assert wrong == {}


@dataclass(frozen=True)
class Settings:
    """Fields of several kinds."""

    steps: int = 3
    share: float | None = None
    names: tuple[str, ...] = ()
    kind: Literal["one", "two"] = "one"

    def __post_init__(self) -> None:
        check_fields(self)


@checked
def taken(
    number: int = 0,
    share: float = 0.0,
    names: Sequence[str] = (),
    file: Path | None = None,
    layers: Sequence[int] | int | None = None,
    *more: int,
    **others: str,
) -> Any:
    """Return the arguments."""
    return number, share, names, file, layers, more, others


def test_values_that_are_allowed_are_handed_on() -> None:
    names = ["a"]
    assert taken(1, 2, names)[2] is names
    assert taken(np.int64(2), np.float32(0.5))[:2] == (2, 0.5)
    assert type(taken(np.int64(2))[0]) is int
    assert taken(layers=np.arange(2))[4] == [0, 1] and taken(layers=range(2))[4] == range(2)
    assert taken(file=cast("Any", "a/b"))[3] == Path("a/b")
    assert taken(1, 2, ("a",), None, 3, 4, 5, x="y")[5:] == ((4, 5), {"x": "y"})
    assert Settings(names=cast("Any", ["a", "b"])).names == ("a", "b")
    assert Settings(cast("Any", np.int64(4)), 1) == Settings(4, 1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"number": True}, "taken takes a whole number as number; got True."),
        ({"number": 1.5}, "taken takes a whole number as number; got 1.5."),
        ({"number": "1"}, "taken takes a whole number as number; got '1'."),
        ({"share": None}, "taken takes a number as share; got None."),
        ({"names": "abc"}, "taken takes a sequence of texts as names; got 'abc'."),
        ({"names": ["a", 2]}, "taken takes a sequence of texts as names; got ['a', 2]."),
        ({"file": 1}, "taken takes a Path or None as file; got 1."),
        ({"names": ["a" * 99, 2]}, "taken takes a sequence of texts as names; got a list."),
        (
            {"layers": torch.zeros(2, 3)},
            "taken takes a sequence of whole numbers, a whole number or None as layers; got a"
            " Tensor float32[2, 3].",
        ),
        ({"other": 1}, "taken takes a mapping of texts to texts as others; got {'other': 1}."),
    ],
)
def test_values_that_are_not_allowed(arguments: Any, message: str) -> None:
    with pytest.raises(BadUsage) as caught:
        taken(**arguments)
    assert str(caught.value) == message


def test_a_choice_that_is_not_there_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="kind of Settings 'tow'. Did you mean 'two'"):
        Settings(kind=cast("Any", "tow"))
    with pytest.raises(BadUsage, match="Settings takes 'one' or 'two' as kind; got 3"):
        Settings(kind=cast("Any", 3))


def test_a_wrong_call_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="as number; got 'x'"):
        taken(number=cast("Any", "x"))


def test_annotations_are_words() -> None:
    assert in_words(Interventions).startswith("a mapping of Sites to Interventions, a mapping")
    assert in_words(Circuit | Sequence[Circuit]) == "a Circuit or a sequence of Circuits"
    assert in_words(tuple[str, int]) == "a tuple (a text, a whole number)"
    assert in_words(Literal["a", "b", "c"]) == "'a', 'b' or 'c'"
    assert in_words(Callable[[int], str] | None) == "a function or None"


def test_the_state_of_the_generators_is_left_alone() -> None:
    """A check of a long sequence looks at all of it, and draws nothing."""
    random.seed(0)
    before = random.getstate()
    with pytest.raises(BadUsage):
        taken(names=cast("Any", ["a"] * 999 + [1]))
    assert random.getstate() == before
