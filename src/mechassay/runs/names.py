"""Names and labels of the models, tasks and files of a run.

A name stands in plan.json, in the names of cells and in records. The name of a path is the path
relative to the working directory: `a/final` for `./a/final`. A record has the name of a path
outside the working directory relative to the home folder or to the root, because records are
published.

A label is for display. It is unique among the labels of a result: the last parts of a path, as few
as tell it from the others (`seed0/final`, `seed1/final`). A folder in a cache of the hub has the
label of its repository.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path, PurePath
from typing import Any

from mechassay.models.sources import (
    AT,
    UNTRAINED,
    cached_repository,
    is_own,
    model_name,
    split_revision,
)
from mechassay.runs import CIRCUITS, FILES_IN
from mechassay.utils.files import relative_name

ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".ndjson", ".gz", ".parquet", ".yaml", ".yml")
"""Endings of the files of tasks."""


def is_task_file(name: str) -> bool:
    """Return whether the name of a task is the path of a file."""
    return name.lower().endswith(ENDINGS)


def name_of(text: str, complete: str) -> str:
    """Return the name of a model, a task or a file, as an option has it.

    Args:
        complete: what the option names, see `Option.complete`.
    """
    if complete == "models":
        return model_name(text)
    path = text
    if complete == CIRCUITS:
        path = FILES_IN.load(CIRCUITS).path_in(text)
    elif complete in ("tasks", "gym tasks") and not is_task_file(text):
        return text
    return f"{relative_name(path)}{text[len(path) :]}" if path and Path(path).exists() else text


def names_of(value: Any, complete: str) -> Any:
    """Return the names in an option's value; of a list, each name once."""
    if isinstance(value, tuple):
        return tuple(dict.fromkeys(names_of(one, complete) for one in value))
    return name_of(value, complete) if isinstance(value, str) else value


def labels_of(names: Iterable[str], forms: Callable[[str], list[str]]) -> dict[str, str]:
    """Return a label for each name: the first form that no other name has at the same place.

    Args:
        forms: returns the forms of a name, the shortest first; the last one is unique.
    """
    every = {name: forms(name) for name in names}
    return {
        name: next(
            (
                text
                for place, text in enumerate(own)
                if all(
                    text != other[min(place, len(other) - 1)]
                    for other_name, other in every.items()
                    if other_name != name
                )
            ),
            name,
        )
        for name, own in every.items()
    }


def model_labels(names: Iterable[str]) -> dict[str, str]:
    """Return the label of each model. Revisions of one model share the label of the path."""
    parts = {name: _parts(name) for name in names}
    paths = labels_of(dict.fromkeys(path for _, path, _ in parts.values()), _model_forms)
    return {name: f"{before}{paths[path]}{after}" for name, (before, path, after) in parts.items()}


def model_label(name: str) -> str:
    """Return the label of a model in a result without other models."""
    return model_labels([name])[name]


def task_labels(names: Iterable[str]) -> dict[str, str]:
    """Return the label of each task."""
    return labels_of(names, _task_forms)


def file_labels(
    paths: Iterable[str], last: Callable[[str], str], others: Collection[str] = ()
) -> dict[str, str]:
    """Return the label of each file or folder.

    Args:
        last: returns the last part of a path as labels have it, such as without its ending.
        others: further labels of the result.
    """

    def forms(path: str) -> list[str]:
        if path in others:  # A path of this name is refused before.
            return [path]
        above = path_forms(str(PurePath(path).parent))
        return [last(path), *(f"{folder}/{last(path)}" for folder in above), path]

    labels = labels_of([*others, *paths], forms)
    return {path: labels[path] for path in paths}


def circuit_labels(texts: Iterable[str]) -> dict[str, str]:
    """Return the label of each circuit: as it was typed, but with the label of its file."""
    path_in = FILES_IN.load(CIRCUITS).path_in
    paths = {text: path_in(text) for text in texts}
    labels = labels_of(dict.fromkeys(filter(None, paths.values())), path_forms)
    return {text: f"{labels.get(path, '')}{text[len(path) :]}" for text, path in paths.items()}


def stored_name(name: str) -> str:
    """Return the name of a model or a task as records have it: of a path outside the working
    directory the path in the home folder or in the root, of a folder in a cache of the hub the
    repository.
    """
    before, path, after = _parts(name)
    if repository := cached_repository(Path(path)):
        path = repository
    elif PurePath(path).is_absolute() or PurePath(path).parts[:1] == ("..",):
        whole = PurePath(os.path.abspath(path))
        home = Path.home()
        top = home if whole.is_relative_to(home) else whole.anchor
        path = whole.relative_to(top).as_posix()
    return f"{before}{path}{after}"


def path_forms(path: str) -> list[str]:
    """Return the last part of a path, its last two parts, and so on to the whole path."""
    parts = PurePath(path).parts
    forms = ["/".join(parts[-n:]) for n in range(1, len(parts))]
    return [*forms, path]


def _parts(name: str) -> tuple[str, str, str]:
    """Return the prefix of a model's name (`untrained:`), the path or id, and the revision."""
    text = name.removeprefix(UNTRAINED)
    path, revision = split_revision(text)
    return name.removesuffix(text), path, f"{AT}{revision}" if revision else ""


def _model_forms(path: str) -> list[str]:
    if not is_own(path):
        return [path]
    if repository := cached_repository(Path(path)):
        return [repository, f"{repository}{AT}{PurePath(path).name[:7]}", path]
    return path_forms(path)


def _task_forms(name: str) -> list[str]:
    return path_forms(name) if is_task_file(name) else [name]
