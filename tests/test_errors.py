"""Errors: one tree, messages for the person who typed the call."""

from __future__ import annotations

import inspect

import pytest

from mechassay import errors
from mechassay.errors import BadUsage, MechassayError, MissingExtra, UnknownName, one_of

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, Exception)
}


def test_all_come_from_one_root() -> None:
    for name, value in CLASSES.items():
        assert issubclass(value, MechassayError) and isinstance(value.usage, bool), name


def test_which_errors_are_the_caller_s() -> None:
    machine = {name for name, value in CLASSES.items() if not value.usage}
    assert machine == {
        "MechassayError",
        "SelfCheckFailed",
        "NonFinite",
        "OutOfMemory",
        "DiskFull",
    } | {"JudgeFault", "InvalidAnswer", "NoAnswer"}


def test_an_unknown_name_suggests_the_nearest() -> None:
    error = UnknownName("method", "eap-ig-input", ["random", "eap-ig-inputs", "eap"])
    assert (
        str(error)
        == "Unknown method 'eap-ig-input'. Did you mean 'eap-ig-inputs'? Known: eap, eap-ig-inputs,"
        " random."
    )
    assert isinstance(error, BadUsage)


def test_a_name_like_no_other_has_no_suggestion() -> None:
    assert str(UnknownName("task", "zzzzzz", iter(["ioi"]))) == "Unknown task 'zzzzzz'. Known: ioi."
    assert str(UnknownName("task", "ioi", [])) == "Unknown task 'ioi'. Known: none."


def test_a_name_that_is_known_twice_is_listed_once() -> None:
    assert str(UnknownName("cell", "c", ["b", "a", "b"])).endswith("Known: a, b.")


def test_of_very_many_names_the_nearest_few_are_listed() -> None:
    names = [f"cell-{number}" for number in range(100)]
    said = str(UnknownName("cell", "cell-4", [name for name in names if name != "cell-4"]))
    listed = said.rpartition("Known: ")[2]
    assert listed.endswith(", and 89 others.") and listed.count("cell-") == UnknownName.FEW
    assert "cell-94" in listed and "cell-49" in listed and "cell-10" not in listed
    assert str(UnknownName("cell", "x", names[: UnknownName.MANY])).count("cell-") == 60


def test_a_missing_extra_has_the_install_command() -> None:
    assert (
        str(MissingExtra("Reading a GGUF file", "gguf", "gguf"))
        == "Reading a GGUF file needs the package 'gguf': pip install 'mechassay[gguf]'."
    )


def test_one_of_gives_the_choice_or_the_nearest() -> None:
    assert one_of("profile", "strict", ("strict", "mib-2025")) == "strict"
    with pytest.raises(UnknownName, match="Unknown profile 'strickt'. Did you mean 'strict'?"):
        one_of("profile", "strickt", ("strict", "mib-2025"))
