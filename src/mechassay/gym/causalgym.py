"""CausalGym (Arora et al. 2024): its 29 tasks by name, and readers of its templates and data.

The tasks are those of appendix A, in five families. Sentences and words are our own; regions,
types and labels are those of the paper. Other packages add tasks under the entry point group
`mechassay.gym_tasks`: each is a function that takes the name and returns a `GymTask`.

The published files are read too:

    templates   a JSON object of tasks: templates, label, labels, variables, result_prepend_space
    rows        a JSON list, JSONL or parquet of task, base, src (lists of spans), base_type,
                src_type, base_label, src_label

Spans keep their spaces as they are written. Options that come twice count twice, and variables
"a.b" and "a.c" are drawn together. The beginning-of-text token that the rows have as text is
left out, because a model has its own. Where a task has one of our names and as many regions,
rows have the names of our regions, else "region_1" and so on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import as_file, files
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from mechassay.errors import BadFile, BadPairs, BadUsage, UnknownName
from mechassay.gym.gym_task import EVERY, KIND, Choice, GymTask, Row, joined, spans_of
from mechassay.gym.names import FAMILIES, FAMILY_OF, FILES, GYM_TASKS
from mechassay.gym.pairs import GymPairs
from mechassay.gym.task_files import read_gym_tasks
from mechassay.prompts.interchanges import InterchangePair
from mechassay.prompts.rows import Mistake, raise_mistakes, read_rows, short
from mechassay.utils.arguments import checked
from mechassay.utils.display import Tabular, html_facts, html_table
from mechassay.utils.files import parsed_json


def published_task(name: str) -> GymTask:
    """One of the 29 tasks.

    Raises:
        UnknownName: it is none of them.
    """
    if name not in FAMILY_OF:
        raise UnknownName("published gym task", name, FAMILY_OF)
    return _family(FAMILY_OF[name])[name]


@cache
def _family(name: str) -> dict[str, GymTask]:
    file = files("mechassay.gym").joinpath("data", f"{name.replace(' ', '_')}.yaml")
    with as_file(file) as path:
        return read_gym_tasks(path)


@checked
def load_gym_task(name: str | PathLike[str], *, filler: bool = False) -> GymTask:
    """A gym task by its name, or that of a YAML file with one task.

    Args:
        name: one of `GYM_TASKS`, or the path of a .yaml or .yml file.
        filler: with a filler in place of empty options, where the task has one.

    Raises:
        UnknownName: no such task.
        BadFile: the file is not there or not of the form of `read_gym_tasks`.
        BadUsage: a file of several tasks; `filler` of a task without one.
    """
    text = fspath(name)
    if text.lower().endswith(FILES):
        tasks = read_gym_tasks(Path(text))
        if len(tasks) > 1:
            raise BadUsage(
                f"{text} has {len(tasks)} tasks, {', '.join(tasks)}: take one of"
                " read_gym_tasks(path)."
            )
        (task,) = tasks.values()
    else:
        task = GYM_TASKS.load(text)(text)
    return task.with_filler() if filler else task


BEGIN = "<|endoftext|>"
NEEDED = ("task", "base", "src", "base_type", "src_type", "base_label", "src_label")

# Each {variable} with the space before it, and each run of fixed text.
_SPANS = re.compile(r" ?\{[^{}]*\}|[^{}]+?(?= ?\{|$)")


@checked
def read_causalgym_templates(path: str | Path) -> dict[str, GymTask]:
    """The tasks of a JSON file of templates; of several templates of a task the first is read.

    Raises:
        BadFile: no such file, not JSON, or not of this form; the message has the key.
    """

    def read(data: Any) -> dict[str, GymTask]:
        tasks = _object(data, "the file")
        return {name: _task(name, _object(tasks[name], name)) for name in tasks}

    return parsed_json(path, read)


def _task(name: str, data: Mapping[str, Any]) -> GymTask:
    for key in ("templates", "label", "labels", "variables"):
        if key not in data:
            raise BadUsage(f"{name} must have templates, label, labels, variables; no {key!r}")
    variables = _object(data["variables"], f"{name}.variables")
    space = " " if data.get("result_prepend_space") else ""
    labels = {
        kind: tuple(space + text for text in _texts(texts, f"{name}.labels.{kind}"))
        for kind, texts in _object(data["labels"], f"{name}.labels").items()
    }
    template = _texts(data["templates"], f"{name}.templates")[0]
    spans: list[str] = _SPANS.findall(template)
    names: list[str] = []
    choices: list[Choice] = []
    together: dict[str, list[tuple[str, str, str]]] = {}
    for span in spans:
        variable = re.search(r"\{(.*)\}", span)
        if variable is None:
            names.append(_unused(span, names))
            choices.append(Choice((names[-1],), {EVERY: ((span,),)}))
            continue
        key = variable[1]
        if key not in variables:
            raise BadUsage(f"{name}.variables must have {key!r}; it has {', '.join(variables)}")
        names.append(_unused(key.rpartition(".")[2], names))
        at = f"{name}.variables.{key}"
        if isinstance(variables[key], dict):
            choices.append(_by_type(names[-1], span, key, variables[key], labels, at))
        elif "." in key:
            together.setdefault(key.partition(".")[0], []).append((names[-1], span, key))
        else:
            rows = tuple((_written(span, key, text),) for text in _texts(variables[key], at))
            choices.append(Choice((names[-1],), {EVERY: rows}))
    for head, parts in together.items():
        lists = [_texts(variables[key], f"{name}.variables.{key}") for _, _, key in parts]
        if len(set(map(len, lists))) > 1:
            lengths = ", ".join(str(len(options)) for options in lists)
            raise BadUsage(f"{name}.variables.{head}.* must be equally long; got {lengths}")
        rows = tuple(
            tuple(
                _written(span, key, text) for (_, span, key), text in zip(parts, row, strict=True)
            )
            for row in zip(*lists, strict=True)
        )
        choices.append(Choice(tuple(text for text, _, _ in parts), {EVERY: rows}))
    if not any(choice.typed for choice in choices):
        raise BadUsage(f"{name}.variables must have one whose options are listed by type; none is")
    empty = any(choice.empty(region) for choice in choices for region in choice.regions)
    return GymTask(
        name=name,
        family=next((f for f, known in FAMILIES.items() if name in known), "own"),
        about="read from a CausalGym template",
        regions=tuple(names),
        labels=labels,
        choices=tuple(sorted(choices, key=lambda choice: names.index(choice.regions[0]))),
        lengths="unequal" if empty else "equal",
    )


def _by_type(
    region: str, span: str, key: str, data: Mapping[str, Any], labels: Mapping[str, Any], at: str
) -> Choice:
    if set(data) != set(labels):
        raise BadUsage(f"{at} must have the types {', '.join(labels)}; got {', '.join(data)}")
    rows: dict[str, tuple[Row, ...]] = {
        kind: tuple((_written(span, key, text),) for text in _texts(data[kind], f"{at}.{kind}"))
        for kind in labels
    }
    return Choice((region,), rows)


def _written(span: str, key: str, text: str) -> str:
    return span.replace(f"{{{key}}}", text)


def _unused(text: str, names: Sequence[str]) -> str:
    """A name that no region has yet."""
    plain = re.sub(r"\W+", "_", text.lower()).strip("_") or "text"
    number = 1
    while (name := plain if number == 1 else f"{plain}_{number}") in names:
        number += 1
    return name


@checked
def read_causalgym_rows(path: str | Path, *, split: str = "") -> dict[str, GymPairs]:
    """The interchanges of a file of the public data set, by task.

    Rows that swap the base and source of one before them are in its group.

    Args:
        split: what the rows are, for those who look at them; the file's name by default.

    Raises:
        BadFile: the file cannot be read as such rows; messages name rows.
        BadPairs: rows whose base and source have different numbers of spans.
        MissingExtra: parquet without `pyarrow`.
    """
    return gym_rows(read_rows(Path(path)), path, split=split or Path(path).stem)


def gym_rows(
    rows: Iterable[tuple[int, Mapping[str, Any]]], path: str | Path, *, split: str
) -> dict[str, GymPairs]:
    """The interchanges of numbered rows; `path` is where they are from, for messages.

    Raises:
        BadFile, BadPairs: see `read_causalgym_rows`.
    """
    by_task: dict[str, list[InterchangePair]] = {}
    names: dict[str, tuple[str, ...]] = {}
    groups: dict[frozenset[str], str] = {}
    mistakes: list[tuple[int, Mistake]] = []
    for place, row in rows:
        try:
            texts = _sides(row)
            task: str = row["task"]
            regions = names.setdefault(task, _names(task, len(texts[0])))
            if len(regions) != len(texts[0]):
                detail = f"{len(texts[0])} for {len(regions)}"
                raise Mistake("another number of spans than the task's first row", detail, BadPairs)
            by_task.setdefault(task, []).append(_pair(row, texts, regions, place, groups))
        except Mistake as mistake:
            mistakes.append((place, mistake))
    raise_mistakes(path, mistakes)
    if not by_task:
        raise BadFile(f"{path}: there are no rows.")
    return {
        task: GymPairs(
            pairs,
            task=task,
            split=split,
            seed=None,
            tested=_tested(names[task], pairs),
        )
        for task, pairs in by_task.items()
    }


def _sides(row: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The spans of base and source, after a look at the row's columns."""
    missing = [repr(name) for name in NEEDED if name not in row]
    if missing:
        raise Mistake(f"no column {', '.join(missing)}", f"there are {', '.join(map(repr, row))}")
    for name in ("task", "base_label", "src_label", "base_type", "src_type"):
        if not isinstance(row[name], str) or not row[name]:
            raise Mistake(f"{name!r} must be text", f"got {short(row[name])}")
    base, source = _spans(row, "base"), _spans(row, "src")
    if len(base) != len(source):
        detail = f"{len(base)} and {len(source)}"
        raise Mistake("base and src have different numbers of spans", detail, BadPairs)
    return base, source


def _pair(
    row: Mapping[str, Any],
    texts: tuple[Sequence[str], Sequence[str]],
    names: Sequence[str],
    place: int,
    groups: dict[frozenset[str], str],
) -> InterchangePair:
    base, source = (joined(parts) for parts in texts)
    name = f"{row['task']}-{place:06d}"
    group = groups.setdefault(frozenset((row["task"], base, source)), name)
    return InterchangePair(
        id=name,
        base=base,
        source=source,
        label=row["src_label"],
        base_label=row["base_label"],
        group=group,
        kind=KIND,
        tags={"type": row["base_type"], "source_type": row["src_type"]},
        base_spans=spans_of(names, texts[0]),
        source_spans=spans_of(names, texts[1]),
    )


def _spans(row: Mapping[str, Any], side: str) -> list[str]:
    """The spans of a sentence, without the token at its beginning."""
    spans: Any = row[side]
    if not isinstance(spans, list) or not all(isinstance(name, str) for name in spans):
        raise Mistake(f"{side!r} must be a list of texts", f"got {short(spans)}")
    spans = list(spans)
    if spans and spans[0].startswith(BEGIN):
        spans[0] = spans[0].removeprefix(BEGIN)
        spans = spans[0 if spans[0] else 1 :]
    if not joined(spans):
        raise Mistake(f"{side!r} is empty", error=BadPairs)
    return spans


def _names(task: str, number: int) -> tuple[str, ...]:
    if any(task in known for known in FAMILIES.values()):
        ours = published_task(task).regions
        if len(ours) == number:
            return ours
    return tuple(f"region_{place}" for place in range(1, number + 1))


def _tested(names: Sequence[str], pairs: Sequence[InterchangePair]) -> tuple[str, ...]:
    """The regions from the first that differs in any pair, without those that are ever empty."""

    def differs(name: str) -> bool:
        return any(_part(pair, name, 0) != _part(pair, name, 1) for pair in pairs)

    def there(name: str) -> bool:
        return all(name in pair.base_spans and name in pair.source_spans for pair in pairs)

    begin = next((place for place, name in enumerate(names) if differs(name)), 0)
    return tuple(name for name in names[begin:] if there(name))


def _part(pair: InterchangePair, name: str, side: int) -> str:
    text, spans = ((pair.base, pair.base_spans), (pair.source, pair.source_spans))[side]
    begin, end = spans.get(name, (0, 0))
    return text[begin:end]


def _object(value: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadUsage(f"{at} must be an object; got {short(value)}")
    return value


def _texts(value: Any, at: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(part, str) for part in value):
        raise BadUsage(f"{at} must be a list of texts; got {short(value)}")
    return tuple(value)


class GymTaskList(Tabular, tuple[GymTask, ...]):
    """Gym tasks; a row of the table for each."""

    def columns(self) -> dict[str, list[Any]]:
        """The tasks by column."""
        return {
            "task": [task.name for task in self],
            "family": [task.family for task in self],
            "types": [" | ".join(task.types) for task in self],
            "labels": [
                " | ".join(
                    ",".join(text.strip() for text in texts) for texts in task.labels.values()
                )
                for task in self
            ],
            "regions": [len(task.tested) for task in self],
            "lengths": [task.lengths for task in self],
            "sentences": [task.n_sentences for task in self],
            "about": [task.about for task in self],
        }

    def __repr__(self) -> str:
        return f"GymTaskList(n={len(self)}, families={len({task.family for task in self})})"

    def _repr_html_(self) -> str:
        columns = self.columns()
        table = html_table(tuple(columns), list(zip(*columns.values(), strict=True)))
        return html_facts(f"{len(self):,} gym tasks", {}, table)


def list_gym_tasks() -> GymTaskList:
    """All gym tasks, those of other packages last; the published ones in the order of the paper."""
    published = list(GYM_TASKS.built_in)
    others = [name for name in GYM_TASKS.names() if name not in GYM_TASKS.built_in]
    return GymTaskList(load_gym_task(name) for name in [*published, *others])
