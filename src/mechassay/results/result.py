"""What a measurement has found: the base of all results.

A result is a frozen dataclass that says in `contents` what a record of it holds. From that follow
its record, its table, its view in a notebook, its figure and its page; the last three are those
of the page of its kind (`records.PAGES`).

    @dataclass(frozen=True, eq=False, repr=False)
    class GymAccuracy(Result, kind="gym-check"):
        margins: Float[np.ndarray, "n"]

        def contents(self) -> RecordContents: ...

A result is stored by the types of its fields: arrays as tensors of a safetensors file, all else
as JSON in the header of that file. Reading checks every value against its type; nothing is run.
A result that holds a fit or a model has no such file, as these have files of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    Self,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from mechassay.errors import BadFile, BadUsage, MechassayError, first_line, one_of
from mechassay.results.records import (
    Check,
    Measure,
    Provenance,
    Record,
    Selection,
    Spec,
    Table,
    Values,
    provenance,
)
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine, Tabular
from mechassay.utils.files import check_ending, read_tensors, write_tensors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor


class RecordContents(TypedDict, total=False):
    """What a result says of its record; the rest is how it came about."""

    cell: dict[str, str]
    identities: Mapping[str, dict[str, str]]
    found_in: Mapping[str, str]
    specs: Mapping[str, Spec]
    measures: Sequence[Measure]
    tables: Sequence[Table]
    checks: Sequence[Check]
    values: Values
    data: Mapping[str, Selection]
    warnings: Sequence[str]


class StoredByFields:
    """A dataclass that is written to a file and read from it by the types of its fields."""

    file_kind: ClassVar[str]
    """What its files say they hold."""

    @checked
    def save(self, path: str | Path) -> Path:
        """Write all of it as a safetensors file; `load` reads it.

        Raises:
            BadUsage: another ending, or a field that no such file holds.
        """
        path = check_ending(path, ".safetensors")
        tensors: dict[str, Tensor] = {}
        header = {"kind": self.file_kind, "fields": _to_plain(self, tensors)}
        write_tensors(path, tensors, header)
        return path

    @classmethod
    @checked
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote; nothing is run.

        Raises:
            BadFile: missing, truncated, foreign, or of another version of the class.
        """
        path = Path(path)
        if path.suffix == ".json":
            raise BadFile(f"{path}: a record of a {cls.file_kind}; `read_record` reads it.")
        tensors, header = read_tensors(path, cls.file_kind)
        try:
            return _from_plain(cls, header["fields"], tensors)
        except (KeyError, ValueError, TypeError, AttributeError, MechassayError) as error:
            reason = f"it lacks {error}" if isinstance(error, KeyError) else first_line(error)
            reason = reason.rstrip(".")
            raise BadFile(f"{path}: holds no {cls.file_kind} of this version ({reason}).") from None


class Result(OneLine, StoredByFields, Tabular):
    """What a measurement has found; see the module.

    A subclass names the `kind` of its records, and what its files hold if that is another word.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str = "", file_kind: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if kind:
            cls.kind, cls.file_kind = kind, file_kind or kind

    def contents(self) -> RecordContents:
        """What a record of it holds: specs, measures, tables, checks, values, warnings."""
        raise NotImplementedError

    @cached_property
    def _contents(self) -> RecordContents:
        # Intervals take time; a figure, a page and a record all want them.
        return self.contents()

    def record(
        self, specs: Mapping[str, Spec] | None = None, made: Provenance | None = None, **more: Any
    ) -> Record:
        """The result as plain data.

        Args:
            specs: what took part, by role, where more is known than the result has; arguments
                of the result's own spec stay beside the given ones.
            made: how it came about.
            more: other fields of the record.
        """
        merged = dict(self._contents.get("specs", {}))
        for role, spec in (specs or {}).items():
            own = merged[role].args if role in merged else {}
            args = {**spec.args, **{name: x for name, x in own.items() if name not in spec.args}}
            merged[role] = spec.model_copy(update={"args": args})
        about = made or provenance(device="", dtype="", seed=getattr(self, "seed", 0))
        held: dict[str, Any] = {**self._contents, "provenance": about, **more, "specs": merged}
        return Record(kind=self.kind, **held)

    def columns(self) -> Mapping[str, Sequence[Any]]:
        """The first table of its record."""
        tables = self._contents.get("tables") or [Table(name="", keys=(), columns={})]
        return tables[0].columns

    @checked
    def plot(self, ax: Axes | None = None) -> Figure:
        """The figure that records of this kind have; see `Record.plot`."""
        return self.record().plot(ax)

    def _repr_html_(self) -> str:
        return self.record().html()

    @checked
    def save(self, path: str | Path) -> Path:
        """Write all of it as `.safetensors`, which `load` reads, or its record as `.json`, which
        `read_record` reads.

        Raises:
            BadUsage: another ending, or a field that no `.safetensors` file holds.
        """
        path = check_ending(path, ".safetensors", ".json")
        return self.record().save(path) if path.suffix == ".json" else super().save(path)

    @checked
    def to_html(self, path: str | Path) -> Path:
        """Write the result as one self-contained HTML file with its figures."""
        from mechassay.results.page import Report
        from mechassay.results.report import write_page

        return write_page(Path(path), Report([self.record()]))


def _to_plain(value: Any, tensors: dict[str, Tensor], at: str = "") -> Any:
    """A value as JSON, its arrays among the tensors by where they stand.

    A mapping is a list of pairs: that keeps its order, and keys that are no text.
    """
    if isinstance(value, np.ndarray):
        from torch import from_numpy

        tensors[at] = from_numpy(np.ascontiguousarray(value))
        return None
    if is_dataclass(value):
        parts = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {name: _to_plain(part, tensors, f"{at}.{name}".strip(".")) for name, part in parts}
    if isinstance(value, Mapping):
        return [[key, _to_plain(part, tensors, f"{at}.{key}")] for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [_to_plain(part, tensors, f"{at}.{place}") for place, part in enumerate(value)]
    if value is None or isinstance(value, str | int | float):
        return value
    raise BadUsage(
        f"{at} is a {type(value).__name__}, which a .safetensors file of results cannot hold;"
        " save the record: end the file's name in .json."
    )


def _from_plain(hint: Any, value: Any, tensors: Mapping[str, Tensor], at: str = "") -> Any:
    """A value of a type from what `_to_plain` made of it."""
    origin, args = get_origin(hint), get_args(hint)
    if getattr(hint, "array_type", hint) is np.ndarray:
        array = tensors[at].numpy()
        if not isinstance(array, hint):
            raise TypeError(f"{at} is an array of another type or shape: {array.shape}")
        return array
    if is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise TypeError(f"{at or 'the whole'} is no JSON object: {value!r}")
        hints = get_type_hints(hint)
        parts = {
            name: _from_plain(hints[name], value[name], tensors, f"{at}.{name}".strip("."))
            for name in (field.name for field in fields(hint))
        }
        return hint(**parts)  # pyright: ignore[reportCallIssue]
    if origin in (Union, UnionType):
        (known,) = (part for part in args if part is not NoneType)
        is_array = getattr(known, "array_type", known) is np.ndarray
        missing = at not in tensors if is_array else value is None
        return None if missing else _from_plain(known, value, tensors, at)
    if origin is Literal:
        return one_of(at, value, args)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {
            _from_plain(args[0], key, tensors): _from_plain(args[1], part, tensors, f"{at}.{key}")
            for key, part in value
        }
    if origin is tuple:
        hints = [args[0]] * len(value) if args[-1] is Ellipsis else args
        pairs = enumerate(zip(hints, value, strict=True))
        return tuple(_from_plain(part, x, tensors, f"{at}.{i}") for i, (part, x) in pairs)
    if not isinstance(value, int | float if hint is float else hint):
        raise TypeError(f"{at or 'a key'} is no {hint.__name__}: {value!r}")
    return value
