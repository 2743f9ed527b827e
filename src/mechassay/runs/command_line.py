"""How a job is typed: the options that its fields are, and the command that makes it.

A job's class says the words of its command (`Job.words`); its fields are the options. What is the
command's default is left out. Secret fields are never written. Typed as it stands, the command
gives an equal job, but for what is secret.
"""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_type_hints

from mechassay.errors import BadUsage

PROGRAM = "mechassay"
Role = Literal["planned", "free", "secret"]


@dataclass(frozen=True)
class Option:
    """How a field of a job is typed at the command line.

    Attributes:
        help: one or two sentences.
        flags: "--model", "-m"; the field's own name if there are none.
        least, most: of numbers.
        complete: what shells offer: "models", "tasks", "methods" or "files".
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


def options_of(job: Any) -> dict[str, Option]:
    """The fields of a job, or of its class, with their options."""
    kind = job if isinstance(job, type) else type(job)
    hints = get_type_hints(kind, include_extras=True)
    about = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
    return {
        each.name: next((x for x in about[each.name] if isinstance(x, Option)), Option())
        for each in dataclasses.fields(kind)
    }


def check_ranges(job: Any) -> None:
    """Refuse a number that is less or more than its option allows.

    Raises:
        BadUsage: a field has one.
    """
    for name, about in options_of(job).items():
        value, least, most = getattr(job, name), about.least, about.most
        if isinstance(value, int | float) and not (
            (least is None or value >= least) and (most is None or value <= most)
        ):
            allowed = f"{least} or more" if most is None else f"between {least} and {most}"
            raise BadUsage(f"{name} must be {allowed}; got {value}.")


def command_line(job: Any, output: Path | None = None) -> str:
    """The command of a job in one line, quoted for a shell; "" where no command makes it.

    Args:
        output: the folder that it writes to; the command's default if not given.
    """
    words = command_words(job)
    if words is None:
        return ""
    return shlex.join([PROGRAM, *words, *(["-o", str(output)] if output else [])])


def command_words(job: Any) -> list[str] | None:
    """The words of `command_line`; None where no command makes the job."""
    head, said = job.words()
    words = list[str](head)
    if not words:
        return None
    defaults = {each.name: _default(each) for each in dataclasses.fields(job)} | dict(job.typed)
    for name, about in options_of(job).items():
        if name in said or about.role == "secret":
            continue
        value, default = getattr(job, name), defaults[name]
        # A list of what to do has another default in some commands: it is always written.
        if _same(value, default) and not (name in job.grows and value):
            continue
        typed = _typed(name, about, value)
        if typed is None:
            return None
        words += typed
    return words


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else None


def _same(value: Any, default: Any) -> bool:
    # 1 is one edge, 1.0 all of them.
    return type(value) is type(default) and value == default


def _typed(name: str, about: Option, value: Any) -> list[str] | None:
    """An option and its value, once for each of several; None for what cannot be typed."""
    flags = about.flags or (f"--{name.replace('_', '-')}",)
    if isinstance(value, bool):
        yes, slash, no = flags[0].partition("/")
        return [yes] if value else [no] if slash else None
    if value is None and about.none:
        return [flags[0], about.none]
    if value is None or value == ():
        return None
    values: tuple[Any, ...] = value if isinstance(value, tuple) else (value,)
    # A value that begins with a dash would be taken for an option.
    return [
        word
        for each in map(str, values)
        for word in ([f"{_long(flags)}={each}"] if each.startswith("-") else [flags[0], each])
    ]


def _long(flags: tuple[str, ...]) -> str:
    return next((flag for flag in flags if flag.startswith("--")), flags[0])
