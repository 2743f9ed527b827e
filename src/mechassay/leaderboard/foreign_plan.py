"""What a plan of others may say: names of models, tasks and methods, and files that come with it.

A plan runs here what somebody else wrote down. So it is refused if it names

    a file or folder of this machine: a path, a model that is found in a folder here
    a file that it does not bring, to measure or to read a circuit from, or names of which one is
        a folder of another
    a secret field or a private split

or if a field has not the type that the job's field has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, cast, get_type_hints

from pydantic import TypeAdapter, ValidationError

from mechassay.errors import BadFile, MechassayError, ModelNotFetched, UnknownName
from mechassay.leaderboard.recomputation import CIRCUITS, with_paths
from mechassay.models.sources import find_source
from mechassay.runs.job import JOBS, options_of
from mechassay.tasks.task import PRIVATE

MODELS = ("model", "models")
SPLITS = ("split", "train_split", "test_split")
MOST_FILES = 2000
_PART = re.compile(r"[\w,:;+=@()\[\]-][\w .,:;+=@()\[\]-]{0,199}")
_HUB_ID = re.compile(r"(untrained:)?[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w.-]+)?")
_FILE = re.compile(r"\.(jsonl?|[ct]sv|ya?ml|pt|npz|gguf|safetensors)($|[@:,])", re.IGNORECASE)
"""The ending of a file, also before settings."""


def is_path(text: str) -> bool:
    """Whether a text names a file or a folder rather than a model, a task or a method."""
    if _HUB_ID.fullmatch(text):
        return ".." in text or is_local(text)
    return bool(re.search(r"[/\\]|^~|\.\.", text) or _FILE.search(text))


def is_local(model: str) -> bool:
    """Whether what a model's name stands for here is a folder or file of the user's.

    One of the hub's name is taken before the hub's model, also below a revision or `untrained:`.
    """
    try:
        found = find_source(model)
    except (ModelNotFetched, UnknownName):
        return False  # Nothing here has the name.
    except MechassayError:
        return True  # Something here has it, and is no model.
    return found.own or (found.kind == "hub" and Path(found.location).exists())


def check_plan(
    plan: Mapping[str, Any], files: Collection[str], where: Path | str
) -> dict[str, Any]:
    """A copy of a plan that reads nothing of this machine but `files`.

    Args:
        files: names of those that come with it.
        where: it is from, for the message.

    Raises:
        BadFile: it is none, or says what the module lists.
    """
    kind = plan.get("kind")
    if kind not in JOBS.names() or not JOBS.load(kind).for_boards:
        raise BadFile(f"{where}: {kind!r} is no kind of run of a board.")
    _check_fields(plan, where)
    heads = _check_names(files, where)

    def look(field: str, path: str) -> str | None:
        if path not in heads:
            raise BadFile(f"{where}: {path!r} is none of its files.")
        # Of a circuit the size stays, which may not make a path of what is left.
        return "" if field == CIRCUITS else None

    for text in _texts(with_paths(plan, look)):
        if is_path(text):
            raise BadFile(f"{where}: names {text!r}, which is a path.")
    for name in _texts([plan.get(field) for field in MODELS]):
        if is_local(name):
            raise BadFile(f"{where}: names {name!r}, which is a folder of this machine.")
    return dict(plan)


def _check_fields(plan: Mapping[str, Any], where: Path | str) -> None:
    """Refuse fields that the job has not so, secret ones, and private splits."""
    kind = JOBS.load(plan["kind"])
    hints, options = get_type_hints(kind), options_of(kind)
    for name in (name for name in plan if name != "kind"):
        if name not in options:
            raise BadFile(f"{where}: no plan of a run (no field {name!r}).")
        if options[name].role == "secret":
            raise BadFile(f"{where}: has {name!r}, which is never stored.")
        if name in SPLITS and plan[name] == PRIVATE:
            raise BadFile(f"{where}: is about private examples.")
        try:
            TypeAdapter[Any](hints[name]).validate_json(json.dumps(plan[name]), strict=True)
        except (ValueError, RecursionError) as error:
            said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise BadFile(f"{where}: no plan of a run ({name}: {said}).") from None


def _check_names(files: Collection[str], where: Path | str) -> set[str]:
    """The names of files, and of the folders that they are in."""
    if len(files) > MOST_FILES:
        raise BadFile(f"{where}: has {len(files):,} files; at most {MOST_FILES:,}.")
    folders: set[str] = set()
    for name in files:
        parts = name.split("/")
        if not all(map(_PART.fullmatch, parts)):
            raise BadFile(f"{where}: {name!r} is no name of a file.")
        folders |= {"/".join(parts[:n]) for n in range(1, len(parts))}
    if both := folders & set(files):
        raise BadFile(f"{where}: {sorted(both)[0]!r} is a file, and the folder of another.")
    return folders | set(files)


def _texts(value: object) -> Iterator[str]:
    """All texts in a plain value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in cast("Mapping[object, object]", value).items():
            yield from (text for each in pair for text in _texts(each))
    elif isinstance(value, list | tuple):
        for each in cast("list[object]", value):
            yield from _texts(each)
