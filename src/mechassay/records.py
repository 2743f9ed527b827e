"""What is stored of a measurement: what was measured on what,
the values per example, and how they came about.

A `Record` is JSON; summaries in it can always be recomputed from its per-example values. NaN
means undefined, is counted in `n_undefined`, and is `null` in JSON. A cell that failed is a
`Failure`, a row like any other.

`FORMAT` is the number of the layout. To change the meaning of a field, raise it and say in the
changelog how old files are read; adding a field with a default does not change it. The JSON
schema is `Record.model_json_schema()`, published in the documentation.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from traceback import format_exception
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from mechassay.errors import MechassayError

FORMAT = 1
PACKAGES = ("mechassay", "torch", "transformers", "tokenizers", "safetensors", "numpy", "scipy")


def _nan_for_null(value: Any) -> Any:
    return float("nan") if value is None else value


Number = Annotated[
    float, BeforeValidator(_nan_for_null), WithJsonSchema({"type": ["number", "null"]})
]


class Stored(BaseModel):
    """Base of everything stored: frozen, no unknown fields, NaN as null."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


class Spec(Stored):
    """A plug-in by name, with the version of its definition and its arguments."""

    name: str
    version: int = 1
    args: dict[str, Any] = Field(default_factory=dict)


class Measure(Stored):
    """One number with its interval.

    `n` counts the examples behind it, `n_undefined` what was undefined. In a faithfulness record
    nothing is left out: a value with undefined parts is itself null. An accuracy is over the `n`
    prompts that have a right answer.
    """

    name: str
    value: Number
    low: Number = float("nan")
    high: Number = float("nan")
    level: float = 0.95
    n: int = 0
    n_undefined: int = 0


class Provenance(Stored):
    """How a result came about."""

    created: str
    commit: str | None
    dirty: bool | None
    packages: dict[str, str]
    python: str
    machine: str
    device: str
    dtype: str
    threads: int
    seed: int
    data_hash: str = ""


class Failure(Stored):
    """A cell without a result: it failed with an error, or it was skipped, for a reason.

    `error` is the class of the error, or the kind of the reason; `message` says it in full. An
    error that nobody foresaw also has its `traceback`.
    """

    cell: dict[str, str]
    error: str
    message: str
    status: Literal["failed", "skipped"] = "failed"
    traceback: str = ""


def failure_of(cell: dict[str, str], error: Exception) -> Failure:
    """The row of a cell that raised an error: its class and the first line of what it says."""
    said = str(error).strip()
    where = "" if isinstance(error, MechassayError) else "".join(format_exception(error))
    return Failure(
        cell=cell,
        error=type(error).__name__,
        message=said.splitlines()[0] if said else "no message",
        traceback=where,
    )


class Record(Stored):
    """One evaluation of one method on one task with one model.

    `data` says for the train and the test pairs what was chosen: settings, pairs kept, pairs
    dropped by reason, and the hash of their content (see `mechassay.pairs.Pairs.selection`).
    """

    format: int = FORMAT
    kind: str
    model: Spec
    task: Spec
    method: Spec
    metric: Spec
    measures: list[Measure]
    per_example: dict[str, list[Number]]
    example_ids: list[str]
    groups: list[str]
    curves: dict[str, Any] = Field(default_factory=dict)
    controls: dict[str, Any] = Field(default_factory=dict)
    realised: dict[str, Number] = Field(default_factory=dict)
    data: dict[str, Any] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)
    provenance: Provenance


def provenance(*, device: str, dtype: str, seed: int, data_hash: str = "") -> Provenance:
    """The state of this machine and package now."""
    import torch

    commit, dirty = _commit()
    return Provenance(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=commit,
        dirty=dirty,
        packages=_versions(),
        python=sys.version.split()[0],
        machine=f"{platform.system()} {platform.machine()}",
        device=device,
        dtype=dtype,
        threads=torch.get_num_threads(),
        seed=seed,
        data_hash=data_hash,
    )


@cache
def _commit() -> tuple[str | None, bool | None]:
    """Commit of the checkout this package runs from, and whether it has changes;
    None where it is not one.
    """
    here = Path(__file__).resolve()
    root = here.parents[2]
    if not (root / ".git").exists():
        return None, None

    def git(*args: str) -> str | None:
        done = subprocess.run(
            ["git", "-C", str(root), *args], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else None

    commit, status = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    return commit, None if status is None else bool(status)


@cache
def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
