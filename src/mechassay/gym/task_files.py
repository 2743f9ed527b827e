"""Gym tasks of one's own, from a YAML file.

    family: animals                             # optional
    lists:                                      # optional: options that several tasks use
      animal: {one: [cat, dog], many: [cats, dogs]}
    tasks:
      where:
        template: The {animal} {place}
        labels: {one: [is, was], many: [are, were]}
        options:
          animal: animal                        # a list by its name
          place: [on the mat, in the garden]

Options are a list; the name of a list; a pattern ("{size} {animal}"), which is every combination of
lists; or any of these by type, and then base and source have their own. Regions that go together
are a list of rows under a name of its own: `phrase: [{verb: ate, object: the cake}, ...]`.
`lengths: unequal` is said where an option may be empty, and `filler` may name other options in
place of some, of which no region is empty. Labels have a space before them, punctuation has none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from mechassay.errors import BadFile, BadUsage, MechassayError, UnknownName, first_line, one_of
from mechassay.gym.gym_task import EVERY, LENGTHS, Choice, GymTask, Region, Row, regions_of, spaced
from mechassay.prompts.rows import short
from mechassay.utils.arguments import checked
from mechassay.utils.files import load_yaml

FILE_KEYS = ("family", "lists", "tasks")
TASK_KEYS = ("about", "template", "labels", "options", "lengths", "filler")
MOST = 100_000
"""Options that one pattern may stand for."""

Texts = tuple[str, ...]
_FIELD = re.compile(r"\{(\w+)\}")


@checked
def read_gym_tasks(path: str | Path) -> dict[str, GymTask]:
    """The tasks of a YAML file by name; see the module.

    Raises:
        BadFile: no such file, not YAML, or not of this form; the message has the key.
    """
    file = Path(path)
    try:
        text = file.read_text("utf-8")
        try:
            data = load_yaml(text)
        except yaml.YAMLError:
            data = yaml.safe_load(text)  # Its error names the line of the mistake.
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror or type(error).__name__}.") from error
    except UnicodeDecodeError as error:
        raise BadFile(f"{path}: is not UTF-8 ({error.reason} at byte {error.start}).") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f"line {mark.line + 1}: "
        reason = getattr(error, "problem", None) or first_line(error)
        raise BadFile(f"{path}: is not YAML ({line}{reason}).") from error
    return gym_tasks(data, str(path))


@checked
def gym_tasks(data: Any, name: str = "gym tasks") -> dict[str, GymTask]:
    """The tasks of what a file holds, by name.

    Args:
        data: as YAML or JSON gives it.
        name: of the file, for messages.

    Raises:
        BadFile: not of this form; the message has the key.
    """
    try:
        top = _mapping(data, "the file", FILE_KEYS, needed=("tasks",))
        lists = _named(top.get("lists", {}), "lists")
        family = _text(top.get("family", "own"), "family")
        tasks = _named(top["tasks"], "tasks")
        if not tasks:
            raise BadUsage("tasks must name at least one task; got none")
        return {
            key: _TaskReader(f"tasks.{key}", lists).task(key, family, tasks[key]) for key in tasks
        }
    except MechassayError as error:
        raise BadFile(f"{name}: {first_line(error).rstrip('.')}.") from error


class _TaskReader:
    """Reads one task; `at` is where it stands in the file."""

    def __init__(self, at: str, lists: Mapping[str, Any]) -> None:
        self.at, self.lists = at, lists
        self.types: Texts = ()

    def task(self, name: str, family: str, data: Any) -> GymTask:
        task = _mapping(data, self.at, TASK_KEYS, needed=("template", "labels", "options"))
        regions = _naming_place(
            regions_of, f"{self.at}.template", _text(task["template"], f"{self.at}.template")
        )
        labels = self._labels(task["labels"])
        self.types = tuple(labels)
        options = _named(task["options"], f"{self.at}.options")
        choices = self._choices(regions, options, "options")
        lengths = task.get("lengths", "equal")
        if not isinstance(lengths, str):
            raise BadUsage(f"{self.at}.lengths must be equal or unequal; got {short(lengths)}")
        _naming_place(one_of, self.at, "lengths", lengths, ("equal", "unequal"))
        filler = None
        if "filler" in task:
            filler = self._filler(regions, options, task["filler"])
        about = _text(task.get("about", ""), f"{self.at}.about")
        empty = [name for choice in choices for name in choice.regions if choice.empty(name)]
        if empty and lengths != "unequal":
            raise BadUsage(
                f"{self.at}.options.{empty[0]} has an empty option, so {self.at}.lengths must be"
                f" unequal; got {lengths}"
            )
        return GymTask(
            name=name,
            family=family,
            about=about,
            regions=tuple(region.name for region in regions),
            labels=labels,
            choices=choices,
            lengths=next(known for known in LENGTHS if known == lengths),
            filler=filler,
        )

    def _labels(self, data: Any) -> dict[str, Texts]:
        at = f"{self.at}.labels"
        by_type = _named(data, at)
        if len(by_type) < 2:
            raise BadUsage(f"{at} must have two types or more; got {len(by_type)}")
        labels = {
            kind: tuple(
                map(
                    spaced,
                    _list([options] if isinstance(options, str) else options, f"{at}.{kind}"),
                )
            )
            for kind, options in by_type.items()
        }
        owner: dict[str, str] = {}
        for kind, texts in labels.items():
            for text in texts:
                if not text.strip():
                    raise BadUsage(f"{at}.{kind} must have no empty label; got {text!r}")
                if owner.setdefault(text, kind) != kind:
                    raise BadUsage(
                        f"{at} must differ by type; {owner[text]} and {kind} have {text!r}"
                    )
        return labels

    def _choices(
        self, regions: tuple[Region, ...], options: Mapping[str, Any], key: str
    ) -> tuple[Choice, ...]:
        fields = {region.name: region for region in regions if region.text is None}
        made: dict[str, Choice] = {}
        for name, value in options.items():
            at = f"{self.at}.{key}.{name}"
            if name in fields:
                rows = {
                    kind: tuple((fields[name].written(text),) for text in texts)
                    for kind, texts in self.resolved(value, at).items()
                }
                choice = Choice((name,), rows)
            else:
                choice = self._together(value, at, fields)
            for region in choice.regions:
                if region in made:
                    raise BadUsage(f"{at} fills {region!r}, which has options already")
                made[region] = choice
        lacking = [name for name in fields if name not in made]
        if lacking:
            raise BadUsage(
                f"{self.at}.{key} must fill {', '.join(fields)}; there is no {lacking[0]!r}"
            )
        fixed = [
            Choice((region_name.name,), {EVERY: ((region_name.text,),)})
            for region_name in regions
            if region_name.text is not None
        ]
        made |= {choice.regions[0]: choice for choice in fixed}
        in_order = tuple(dict.fromkeys(id(made[region.name]) for region in regions))
        by_id = {id(choice): choice for choice in made.values()}
        choices = tuple(by_id[number] for number in in_order)
        if not any(choice.typed for choice in choices):
            raise BadUsage(f"{self.at}.{key} must list the options of one field by type; none is")
        return choices

    def _together(self, value: Any, at: str, fields: Mapping[str, Region]) -> Choice:
        """Regions that are drawn together: rows, or rows by type."""
        by_type = value if isinstance(value, dict) else {EVERY: value}
        if not all(
            isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
            for rows in by_type.values()
        ):
            # It fills no field itself: most likely a slip of the pen.
            field = at.rpartition(".")[2]
            _naming_place(one_of, at.rpartition(".")[0], "field", field, fields)
        if EVERY not in by_type:
            self._check_types(by_type, at)
        names: Texts = ()
        rows: dict[str, tuple[Row, ...]] = {}
        for kind, options in by_type.items():
            where = f"{at}.{kind}" if kind else at
            if not options:
                raise BadUsage(f"{where} must have a row; got none")
            keys = tuple(_named(options[0], f"{where}[0]"))
            names = names or tuple(name for name in fields if name in keys)
            if set(keys) - set(fields):
                key = next(key for key in keys if key not in fields)
                _naming_place(one_of, f"{where}[0]", "field", key, fields)
            filled: list[Row] = []
            for number, row in enumerate(options):
                if set(row) != set(names):
                    message = f"{where}[{number}] must fill {', '.join(names)}"
                    raise BadUsage(f"{message}; got {', '.join(map(str, row)) or 'nothing'}")
                filled.append(
                    tuple(
                        fields[name].written(_text(row[name], f"{where}[{number}].{name}"))
                        for name in names
                    )
                )
            rows[kind] = tuple(filled)
        return Choice(names, rows)

    def _filler(
        self, regions: tuple[Region, ...], options: Mapping[str, Any], data: Any
    ) -> tuple[Choice, ...]:
        """The choices with some options, or those of some types, in place of others."""
        at = f"{self.at}.filler"
        filled = dict(options)
        for name, value in _named(data, at).items():
            _naming_place(one_of, at, "option", name, options)
            own = options[name]
            both = isinstance(value, dict) and isinstance(own, dict)
            filled[name] = {**own, **value} if both else value
        choices = self._choices(regions, filled, "filler")
        for choice in choices:
            for name in choice.regions:
                if choice.empty(name):
                    raise BadUsage(f"{at} must leave no region empty; {name!r} still may be")
        return choices

    def resolved(self, value: Any, at: str, within: Texts = ()) -> dict[str, Texts]:
        """Options by type, or under `EVERY`."""
        if isinstance(value, list):
            return {EVERY: _list(value, at)}
        if isinstance(value, dict):
            self._check_types(value, at)
            by_kind: dict[str, Texts] = {}
            for kind, options in value.items():
                inner = self.resolved(options, f"{at}.{kind}", within)
                if EVERY not in inner:
                    raise BadUsage(f"{at}.{kind} must be options of one type; got a list by type")
                by_kind[kind] = inner[EVERY]
            return by_kind
        if isinstance(value, str):
            return self._pattern(value, at, within)
        raise BadUsage(
            f"{at} must be a list, the name of a list, a pattern of lists, or these by type; got"
            f" {short(value)}{_quoted(value)}"
        )

    def _pattern(self, value: str, at: str, within: Texts) -> dict[str, Texts]:
        names = _FIELD.findall(value) or [value]
        parts: list[dict[str, Texts]] = []
        for name in names:
            if name in within:
                raise BadUsage(f"{at} is a list made of itself: {' of '.join((*within, name))}")
            _naming_place(one_of, at, "list", name, self.lists)
            parts.append(self.resolved(self.lists[name], f"lists.{name}", (*within, name)))
        if not _FIELD.search(value):
            return parts[0]
        fixed = _FIELD.split(value)[::2]
        types = self.types if any(EVERY not in part for part in parts) else (EVERY,)
        by_kind: dict[str, Texts] = {}
        for kind in types:
            lists = [part[EVERY] if EVERY in part else part[kind] for part in parts]
            size = 1
            for options in lists:
                size *= len(options)
            if size > MOST:
                raise BadUsage(f"{at} must stand for at most {MOST:,} options; got {size:,}")
            by_kind[kind] = tuple(
                fixed[0] + "".join(a + b for a, b in zip(row, fixed[1:], strict=True))
                for row in product(*lists)
            )
        return by_kind

    def _check_types(self, data: Mapping[Any, Any], at: str) -> None:
        if set(data) != set(self.types):
            got = ", ".join(map(str, data)) or "none"
            raise BadUsage(f"{at} must have the types {', '.join(self.types)}; got {got}")


def _naming_place(read: Any, at: str, *args: Any) -> Any:
    """What a reader gives; its error begins with where it was."""
    try:
        return read(*args)
    except BadUsage as error:
        raise BadUsage(f"{at}{':' * isinstance(error, UnknownName)} {first_line(error)}") from error


def _mapping(data: Any, at: str, allowed: Texts, needed: Texts) -> dict[str, Any]:
    named = _named(data, at)
    for key in named:
        _naming_place(one_of, at, "key", key, allowed)
    for key in needed:
        if key not in named:
            raise BadUsage(f"{at} must have {', '.join(needed)}; there is no {key!r}")
    return named


def _named(data: Any, at: str) -> dict[str, Any]:
    """A mapping whose keys are text."""
    if not isinstance(data, dict):
        raise BadUsage(f"{at} must be a mapping; got {short(data)}")
    for key in data:
        if not isinstance(key, str):
            raise BadUsage(f"{at} must have names of text; got {short(key)}{_quoted(key)}")
    return data


def _list(data: Any, at: str) -> Texts:
    """Different texts."""
    if not isinstance(data, list) or not data:
        raise BadUsage(f"{at} must be a list of texts; got {short(data)}")
    texts = tuple(_text(text, f"{at}[{number}]") for number, text in enumerate(data))
    twice = next((text for text in texts if texts.count(text) > 1), None)
    if twice is not None:
        raise BadUsage(f"{at} must have every option once; {twice!r} comes again")
    return texts


def _text(data: Any, at: str) -> str:
    if not isinstance(data, str):
        raise BadUsage(f"{at} must be text; got {short(data)}{_quoted(data)}")
    return data


def _quoted(value: Any) -> str:
    """YAML reads no, on and yes as truth values."""
    return " (a word such as no or yes is written in quotes)" if isinstance(value, bool) else ""
