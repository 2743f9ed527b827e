"""The divergences of all pairs as one parquet file.

    clean, corrupted   places of the two prompts in the pools, in the smallest unsigned type
    empty circuit      KL(M(x) || M(x~)), fp32, in nats
    <circuit>          KL(M(x) || C(x, x~)), fp32, in nats, one column a circuit by its name

Rows are in the order of the values: of a grid, all corrupted prompts of the first clean one first.
Pairs outside a restricted grid are left out. The same values give the same bytes (with the same
version of pyarrow). If ablated edges carry constants there is no column `corrupted`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from mechassay.display import OneLine
from mechassay.errors import BadFile, MissingExtra, first_line
from mechassay.files import whole

EMPTY = "empty circuit"
CLEAN, CORRUPTED = "clean", "corrupted"


@dataclass(frozen=True, eq=False, repr=False)
class DivergenceFile(OneLine):
    """Divergences of all pairs.

    Attributes:
        names: of the circuits.
        circuits: [circuits, clean, corrupted] for a grid, else [circuits, pairs]. NaN is no pair.
        corrupted: of the empty circuit, on the same pairs.
        paired: False if ablated edges carry constants: there are no corrupted prompts then.
    """

    names: tuple[str, ...]
    circuits: Float[np.ndarray, "circuits *pairs"]
    corrupted: Float[np.ndarray, "*pairs"]
    paired: bool = True

    def save(self, path: Path) -> None:
        """Write the file; it appears whole or not at all.

        Raises:
            MissingExtra: `pyarrow` is not installed.
        """
        pyarrow, parquet = arrow()
        columns: dict[str, np.ndarray] = {}
        shape = self.corrupted.shape
        if len(shape) == 2:
            columns[CLEAN] = np.repeat(_places(shape[0]), shape[1])
            columns[CORRUPTED] = np.tile(_places(shape[1]), shape[0])
        else:
            columns[CLEAN] = _places(shape[0])
            if self.paired:
                columns[CORRUPTED] = columns[CLEAN]
        numbers = {EMPTY: self.corrupted, **dict(zip(self.names, self.circuits, strict=True))}
        columns |= {
            name: np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
            for name, values in numbers.items()
        }
        pairs = ~np.isnan(self.corrupted).reshape(-1)
        if not pairs.all():
            columns = {name: values[pairs] for name, values in columns.items()}
        table = pyarrow.table(columns).replace_schema_metadata(
            {"unit": "nats", "shape": ",".join(map(str, shape))}
        )
        # Puts the first bytes of all numbers together: sign and exponent are nearly constant.
        split = {name: "BYTE_STREAM_SPLIT" for name in numbers}
        places = [name for name in columns if name not in numbers]
        with whole(path) as partial:
            parquet.write_table(
                table, partial, compression="zstd", use_dictionary=places, column_encoding=split
            )

    @staticmethod
    def load(path: Path, names: Sequence[str]) -> DivergenceFile:
        """Read what `save` wrote.

        Raises:
            BadFile: truncated, foreign, about other circuits, or with values that are not finite.
            MissingExtra: `pyarrow` is not installed.
        """
        pyarrow, parquet = arrow()
        try:
            table = parquet.read_table(path)
            shape = tuple(map(int, (table.schema.metadata or {})[b"shape"].split(b",")))
            numbers = np.stack([table[name].to_numpy() for name in (EMPTY, *names)])
            places = _places_of(table, shape)
        except (OSError, pyarrow.ArrowException, KeyError, ValueError, IndexError) as error:
            raise BadFile(
                f"{path}: not a file of divergences of {', '.join(names)} ({first_line(error)})."
            ) from None
        if not np.isfinite(numbers).all():
            raise BadFile(
                f"{path}: {int((~np.isfinite(numbers)).sum()):,} of its divergences are not finite."
            )
        whole = numbers
        if places is not None:
            whole = np.full((len(numbers), math.prod(shape)), np.nan, dtype=numbers.dtype)
            whole[:, places] = numbers
        whole = whole.reshape(-1, *shape)
        return DivergenceFile(tuple(names), whole[1:], whole[0], CORRUPTED in table.column_names)

    @staticmethod
    def file_hash(path: Path) -> str:
        """SHA-256 of the file, by which records name it."""
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def arrow() -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet.

    Raises:
        MissingExtra: they are not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("Writing divergences as parquet", "pyarrow", "parquet") from error
    return pyarrow, pyarrow.parquet


def _places_of(table: Any, shape: tuple[int, ...]) -> Int[np.ndarray, "rows"] | None:
    """The places of a file's rows in the values of that shape; None if the file has all of them.

    Raises:
        ValueError, KeyError: the rows do not fit the shape.
    """
    if table.num_rows == math.prod(shape):
        return None
    if len(shape) != 2:
        raise ValueError(f"{table.num_rows} rows instead of {math.prod(shape)}")
    clean, corrupted = (table[name].to_numpy().astype(np.int64) for name in (CLEAN, CORRUPTED))
    if clean.max(initial=0) >= shape[0] or corrupted.max(initial=0) >= shape[1]:
        raise ValueError(f"pairs that a grid of {shape[0]} x {shape[1]} does not have")
    return clean * shape[1] + corrupted


def _places(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.min_scalar_type(max(n - 1, 0)))
