"""What is stored of a measurement: what was measured on what, the values behind it, its provenance.

A `Record` is JSON and holds, in this order of importance: `measures`, numbers with their
intervals, of the result and of its controls; `tables` in long form; `checks`, controls with a
known answer; `values`, the numbers of every example. A number that is undefined is NaN in
Python, `null` in JSON, and counted in `n_undefined`. A cell that failed is a `Failure`.

`FORMAT` is the number of the layout; 0.1.0 begins with 2. To change the meaning of a field,
raise it and say in the changelog how files of the last one are read; adding a field with a
default does not change it. The JSON schema is published in the documentation.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from traceback import format_exception
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from jaxtyping import Float
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from mechassay.errors import BadUsage, MechassayError, UnknownName
from mechassay.stats.intervals import Estimate
from mechassay.utils.arguments import checked
from mechassay.utils.display import (
    LONGEST,
    data_frame,
    html_facts,
    html_note,
    html_table,
    interval,
    line,
    shortened,
)
from mechassay.utils.files import write_text
from mechassay.utils.registry import Registry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


FORMAT = 2
RESULT = "result"
"""What measures are of if not of the model, a control, a difference or the method."""
IDENTITY = "identity"
"""The setting of a model that has the digest of its weights, if its name does not say which weights
it has."""
SEAL = "sha256"
"""The field of a stored record that has the hash of all others."""
ROWS = 20
"""Rows of a table that a notebook shows."""
PAGES = Registry(
    "page",
    {
        "": "mechassay.results.report:GenericPage",
        "accuracy": "mechassay.runs.accuracy_page:AccuracyPage",
        "adversarial": "mechassay.adversarial.pages:AdversarialPage",
        "adversarial-paper": "mechassay.adversarial.paper:PaperPage",
        "adversarial-shift": "mechassay.adversarial.shift:ShiftPage",
        "adversarial-search": "mechassay.adversarial.pages:SearchPage",
        "alignments": "mechassay.variables.page:VariablesPage",
        "assess": "mechassay.judges.pages:AssessmentsPage",
        "circuits": "mechassay.discovery.suite_page:CircuitsPage",
        "claims": "mechassay.claims.pages:ClaimsPage",
        "claims-comparison": "mechassay.claims.pages:ClaimsComparisonPage",
        "claims-evaluation": "mechassay.judges.pages:ClaimsEvaluationPage",
        "claims-judges": "mechassay.judges.judges_compared:JudgesPage",
        "claims-registry": "mechassay.judges.registry:RegistryPage",
        "claims-vote": "mechassay.judges.pages:ClaimsVotePage",
        "directions": "mechassay.gym.pages:DirectionsPage",
        "gym": "mechassay.gym.pages:GymPage",
        "gym-check": "mechassay.gym.checkpoint_pages:GymCheckPage",
        "measure": "mechassay.measurement.page:MeasurePage",
        "patch": "mechassay.interventions.patch_page:PatchPage",
        "reproduction": "mechassay.reproduction.page:ReproductionPage",
        "suite": "mechassay.discovery.suite_page:SuitePage",
        "variables": "mechassay.variables.page:VariablesPage",
    },
)
"""The page of each kind of records and runs: a class `mechassay.results.page.Page`. "" shows those
of any other kind. Pages are named, not imported: records know nothing of them."""
FILES_OF_RUNS = Registry(
    "file of a run",
    {
        "scores": "mechassay.circuits.graph_files:load_scores",
        "circuit": "mechassay.circuits.graph_files:circuit_of_record",
    },
    plural="files_of_runs",
)
"""What reads the files of a run's records: scores from a file, and the circuit of a record from the
record and its scores."""
PACKAGES = ("mechassay", "torch", "transformers", "tokenizers", "safetensors", "numpy", "scipy")

Scalar = bool | int | float | str | None
Plain = Scalar | list[Scalar]
"""An argument of a plug-in."""


def _nan_for_null(value: Any) -> Any:
    return math.nan if value is None else value


def _plain(value: Any) -> Any:
    """Tuples as lists; what is deeper than a list as its JSON text."""
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True, default=str)
    return [_plain(x) for x in value] if isinstance(value, list | tuple) else value


def _plain_args(args: Any) -> Any:
    return {name: _plain(value) for name, value in args.items()}


def _null_for_nan(column: Any) -> Any:
    return [None if isinstance(x, float) and not math.isfinite(x) else x for x in column]


Number = Annotated[
    float, BeforeValidator(_nan_for_null), WithJsonSchema({"type": ["number", "null"]})
]
Args = Annotated[dict[str, Plain], BeforeValidator(_plain_args)]
Column = Annotated[list[Scalar], BeforeValidator(_null_for_nan)]


class Stored(BaseModel):
    """Base of everything stored: frozen, no unknown fields, NaN as null."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


class Spec(Stored):
    """A plug-in by name, with the version of its definition and its arguments."""

    name: str
    version: int = 1
    args: Args = Field(default_factory=dict)


class Measure(Stored):
    """One number with its interval, and all that is needed to show it.

    Attributes:
        name: of the metric: "cpr".
        of: what it is of: "result"; "model"; a control, as "control:random"; the result less a
            control over the same examples, as "difference:random"; or "method", the result with an
            interval over training pairs too.
        n, n_undefined: examples behind it, and what was undefined among them. Of a faithfulness
            nothing is left out: a value with undefined parts is itself undefined.
        better: whether higher ("up") or lower ("down") values are better; "" where neither is.
        title: the heading it stands under; the name if empty.
        meaning: what the number says, for readers of a report.
        criterion: the criterion of a rubric that the number is evidence for.
    """

    name: str
    value: Number
    low: Number = math.nan
    high: Number = math.nan
    level: float = 0.95
    n: int = 0
    n_undefined: int = 0
    of: str = RESULT
    better: Literal["up", "down", ""] = ""
    unit: str = ""
    title: str = ""
    meaning: str = ""
    criterion: str = ""

    def __repr__(self) -> str:
        return f"Measure({self.name} of {self.of}: {_measure_text(self)}, n={self.n})"

    __str__ = __repr__

    @property
    def heading(self) -> str:
        """What it is called in a table."""
        return self.title or self.name


class Table(Stored):
    """Rows of equal shape, one column a list: long form, ready for a data frame.

    Attributes:
        keys: the columns that tell rows apart; the others are what was found.
    """

    name: str
    keys: tuple[str, ...]
    columns: dict[str, Column]

    @model_validator(mode="after")
    def _rectangular(self) -> Self:
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of different lengths: {lengths}")
        if missing := [key for key in self.keys if self.columns and key not in self.columns]:
            raise ValueError(f"keys that are no columns: {missing}")
        return self

    @classmethod
    def of(cls, name: str, keys: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Table:
        """A table of rows that all have the same names, in the order of the first."""
        held = list(rows)
        columns = {key: [row[key] for row in held] for key in (held[0] if held else ())}
        return cls(name=name, keys=tuple(keys), columns=columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def rows(self) -> list[dict[str, Scalar]]:
        """Each row by the names of its columns; None is undefined."""
        names = list(self.columns)
        return [
            dict(zip(names, row, strict=True)) for row in zip(*self.columns.values(), strict=True)
        ]

    def where(self, **values: Scalar) -> Table:
        """The rows that have these values: `curve.where(of="result", ranking="value")`."""
        wanted = [(self.columns[key], x) for key, x in values.items()] if len(self) else []
        kept = [i for i in range(len(self)) if all(column[i] == x for column, x in wanted)]
        columns = {name: [column[i] for i in kept] for name, column in self.columns.items()}
        # Of columns that were checked; a table without rows has none.
        return self.model_copy(update={"columns": columns if kept else {}})

    def numbers(self, column: str) -> Float[np.ndarray, "rows"]:
        """A column as an array; NaN is undefined."""
        return np.array(self.columns.get(column, []), dtype=float)

    def to_pandas(self) -> Any:
        """The table as a pandas DataFrame.

        Raises:
            MissingExtra: pandas is not installed.
        """
        return data_frame(self.columns)

    def __repr__(self) -> str:
        return line("Table", {"name": self.name, "rows": len(self), "columns": tuple(self.columns)})

    __str__ = __repr__

    def _repr_html_(self) -> str:
        rows = [[show(x) for x in row.values()] for row in self.rows()[:ROWS]]
        more = f"{len(self) - ROWS:,} more rows" if len(self) > ROWS else ""
        return html_facts(self.name, {}, html_table(list(self.columns), rows, more))


class Check(Stored):
    """A control whose answer is known.

    Attributes:
        must_be: the answer, in words.
        largest: the largest difference from it.
        n, n_wrong: how many were looked at, and how many differ by more than they may.
        says: what a failure of the check means.
    """

    name: str
    must_be: str
    largest: Number
    n: int
    n_wrong: int
    unit: str = ""
    says: str = ""

    @property
    def passed(self) -> bool:
        return self.n_wrong == 0


class Values(Stored):
    """The numbers of every example: here, or in a file beside the record.

    Attributes:
        unit: what an example is: "pair", "example", "edge".
        ids, groups: of each example, its name and the unit that intervals respect.
        columns: each a number for every id.
        file, sha256: where the numbers are, if not here.
    """

    unit: str
    ids: list[str] = Field(default_factory=list)
    groups: list[str] = Field(default_factory=list)
    columns: dict[str, list[Number]] = Field(default_factory=dict)
    file: str = ""
    sha256: str = ""

    def __repr__(self) -> str:
        columns = tuple(self.columns)
        return line("Values", {"unit": self.unit, "n": len(self.ids), "columns": columns})

    __str__ = __repr__

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for name, column in {"groups": self.groups, **self.columns}.items():
            if len(column) != len(self.ids):
                raise ValueError(f"{name} has {len(column)} values for {len(self.ids)} ids")
        return self


class PairTokens(Stored):
    """A pair as the tokens of its prompts, in their order, and its first answers and foils."""

    id: str
    clean: list[str]
    counterfactual: list[str]
    answers: list[str]
    foils: list[str]


class Selection(Stored):
    """What was chosen of a source of examples, and what was left out of it.

    Attributes:
        kept: examples that were used.
        dropped: examples that were not, by reason.
        alignment: how tokens of prompts were made to match, by way (see
            `mechassay.prompts.tokenization`).
        hash: of the content that was kept.
        notes: what the source says of itself, such as that rows repeat each other.
        counts: other numbers of the choice.
        first: the first pair that was kept; None where pairs are private.
        token_hashes: hashes of the tokens of each pair's clean and counterfactual prompts
            (`Batch.token_hashes`); empty where pairs are private.
    """

    hash: str
    task: str = ""
    version: int = 1
    split: str = ""
    counterfactual: str = ""
    keep: str = ""
    pairing: str = ""
    seed: int | None = None
    settings: Args = Field(default_factory=dict)
    kept: int = 0
    dropped: dict[str, int] = Field(default_factory=dict)
    alignment: dict[str, int] = Field(default_factory=dict)
    notes: dict[str, str] = Field(default_factory=dict)
    counts: dict[str, int] = Field(default_factory=dict)
    first: PairTokens | None = None
    token_hashes: dict[str, list[str]] = Field(default_factory=dict)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Selection:
        """From plain values; numbers under names of their own become `counts`."""
        own = {key: value for key, value in plain.items() if key in cls.model_fields}
        counts = dict(own.pop("counts", {}))
        for key, value in plain.items():
            if key not in cls.model_fields:
                counts |= value if isinstance(value, Mapping) else {key: value}
        return cls(**own, counts=counts)


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
    tf32: str = "auto"


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
    message = str(error).strip()
    where = "" if isinstance(error, MechassayError) else "".join(format_exception(error))
    return Failure(
        cell=cell,
        error=type(error).__name__,
        message=message.splitlines()[0] if message else "no message",
        traceback=where,
    )


class Record(Stored):
    """One cell of a run, done: one method on one task with one model, for example.

    Attributes:
        kind: of the experiment that measured: "circuits", "accuracy", "adversarial".
        cell: the names by which the run asked for it: model, task, method.
        cell_digest: digest of the cell's name in its run.
        identities: digests of the model, the task and the files, by role (`runs.identities`).
            Without identities the measured content is not known.
        found_in: scores, circuits, features or dictionaries that were found in another model, with
            that model; "" if the model is not known (`models.origin`).
        specs: what took part, by its role: model, task, method, metric, and whatever else.
        spent: what it took: seconds, memory.
        data: what was chosen, by role: the train and the test pairs.
        warnings: what a reader has to know.
        verdict, conclusion: the word and the first sentence on this record alone when it was made
            (`results.verdict`); pages conclude again, over all records of a setting.
        sha256: of the content, in files alone: `stored_text` writes it, `read_record` takes it off.
    """

    format: Literal[2] = FORMAT
    kind: str
    cell: dict[str, str] = Field(default_factory=dict)
    cell_digest: str = ""
    identities: dict[str, dict[str, str]] = Field(default_factory=dict)
    found_in: dict[str, str] = Field(default_factory=dict)
    specs: dict[str, Spec]
    measures: list[Measure]
    tables: list[Table] = Field(default_factory=list)
    checks: list[Check] = Field(default_factory=list)
    values: Values | None = None
    spent: dict[str, Number] = Field(default_factory=dict)
    data: dict[str, Selection] = Field(default_factory=dict)
    warnings: list[str] = Field(default_factory=list)
    verdict: str = ""
    conclusion: str = ""
    provenance: Provenance
    sha256: str = ""

    @property
    def model(self) -> Spec:
        return self._spec("model")

    @property
    def task(self) -> Spec:
        return self._spec("task")

    @property
    def method(self) -> Spec:
        return self._spec("method")

    @property
    def metric(self) -> Spec:
        return self._spec("metric")

    def __repr__(self) -> str:
        names = {role: spec.name for role, spec in self.specs.items() if spec.name}
        texts = {m.name: _measure_text(m) for m in self.measures if m.of == "result"}
        own = ", ".join(f"{k}={v}" for k, v in {**names, **texts}.items())
        return f"Record({self.kind}: {shortened(own, LONGEST, LONGEST - 1)}, n={self.n})"

    __str__ = __repr__

    def _repr_html_(self) -> str:
        return self.html()

    def html(self) -> str:
        """What a notebook shows: measures with intervals, warnings, and the figure if any."""
        from mechassay.results.plots import svg

        names = {role: spec.name for role, spec in self.specs.items() if spec.name}
        numbers = [m for m in self.measures if m.of == "result" or m.of.startswith("control:")]
        rows = [
            [
                m.heading,
                "" if m.of == "result" else m.of.removeprefix("control:"),
                _measure_text(m),
                m.n,
            ]
            for m in numbers[:ROWS]
        ]
        more = f"{len(numbers) - ROWS:,} more in to_pandas()" if len(numbers) > ROWS else ""
        table = html_table(("measure", "control", "value [interval]", "n"), rows, more)
        notes = "".join(map(html_note, self.warnings))
        page = page_of(self.kind)
        answer = f"<p>{escape(' '.join(page.answers([self])))}</p>"
        figure = page.draw(self)
        picture = "" if figure is None else svg(figure)
        return answer + html_facts(self.kind, names, table, notes, picture)

    @checked
    def plot(self, ax: Axes | None = None, **settings: Any) -> Figure:
        """The figure of a record, which the page of its kind draws.

        Args:
            ax: where to draw one panel; without it, all get a figure of their own.
            settings: of the figure: of faithfulness the `ranking` that is drawn on `ax`, "value"
                or "magnitude".

        Raises:
            BadUsage: the record has no figure: its kind has none, or it lacks the table.
        """
        figure = page_of(self.kind).draw(self, ax, **settings)
        if figure is None:
            raise BadUsage(f"A record of the kind {self.kind} has no figure; see its tables.")
        return figure

    def columns(self) -> dict[str, list[Any]]:
        """The measures as columns."""
        names = ("name", "of", "value", "low", "high", "level", "n", "n_undefined", "better")
        return {name: [getattr(m, name) for m in self.measures] for name in names}

    def to_pandas(self) -> Any:
        """The measures as a pandas DataFrame; `record.table(name).to_pandas()` for its tables.

        Raises:
            MissingExtra: pandas is not installed.
        """
        return data_frame(self.columns())

    @checked
    def save(self, path: str | Path) -> Path:
        """Write the record as JSON; `read_record` reads it."""
        return write_text(Path(path), self.stored_text())

    def stored_text(self) -> str:
        """The record as JSON with the hash of its content, by which an edited file is known."""
        digest = content_hash(json.loads(self.model_dump_json()))
        return self.model_copy(update={SEAL: digest}).model_dump_json(indent=1) + "\n"

    def _spec(self, role: str) -> Spec:
        return self.specs.get(role) or Spec(name="")

    @property
    def transfers(self) -> list[str]:
        """A sentence for each result of another model that was measured here: both models."""
        weights = self.identities.get("model", {}).get("weights", "")
        here = f"{self.model.name} (weights {weights[:8]})" if weights else self.model.name
        return [
            f"The {what} of {there}, measured in {here}."
            for what, there in self.found_in.items()
            if there
        ]

    @property
    def n(self) -> int:
        """Examples that the record is about."""
        held = len(self.values.ids) if self.values else 0
        return held or max((measure.n for measure in self.measures), default=0)

    @property
    def n_groups(self) -> int:
        """Groups of its examples."""
        return len(set(self.values.groups)) if self.values else 0

    @checked
    def measure(self, name: str, of: str = "result") -> Measure | None:
        """The measure of that name, if the record has it."""
        return next((m for m in self.measures if (m.name, m.of) == (name, of)), None)

    @checked
    def value(self, name: str, of: str = "result") -> float:
        """The value of a measure; NaN if the record does not have it."""
        measure = self.measure(name, of)
        return math.nan if measure is None else measure.value

    def has_table(self, name: str) -> bool:
        """Whether there is a table of that name."""
        return any(table.name == name for table in self.tables)

    @checked
    def table(self, name: str) -> Table:
        """The table of that name.

        Raises:
            UnknownName: there is none.
        """
        for table in self.tables:
            if table.name == name:
                return table
        raise UnknownName("table of the record", name, [table.name for table in self.tables])

    def concluded(self) -> Record:
        """Return a copy with its verdict and conclusion, if its kind has preconditions."""
        own = page_of(self.kind).conclusions([self])
        if not own:
            return self
        return self.changed(verdict=str(own[0].verdict), conclusion=own[0].headline)

    def changed(self, **fields: Any) -> Record:
        """The record with other fields; a spec by its role: `record.changed(task=Spec(...))`."""
        specs = {role: fields.pop(role) for role in list(fields) if role in self.specs}
        return self.model_copy(update={**fields, "specs": {**self.specs, **specs}})


def _measure_text(measure: Measure) -> str:
    return interval(measure.value, measure.low, measure.high)


def page_of(kind: str) -> Any:
    """The page of a kind of records; that of any records where the kind has none of its own."""
    return PAGES.load(kind if kind in PAGES else "")()


def show(value: Scalar) -> str:
    """A cell of a table for people."""
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def content_hash(plain: Mapping[str, Any]) -> str:
    """The SHA-256 of a record as plain values, its own hash left out."""
    held = {key: value for key, value in plain.items() if key != SEAL}
    text = json.dumps(held, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def first_mistake(error: ValidationError) -> str:
    """The first thing that is wrong with a file, and where."""
    first = error.errors()[0]
    text = first["msg"].removeprefix("Value error, ")
    return f"{'.'.join(map(str, first['loc'])) or 'file'}: {text}"


def provenance(
    *, device: str, dtype: str, seed: int, data_hash: str = "", tf32: str = "auto"
) -> Provenance:
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
        tf32=tf32,
    )


@cache
def _commit() -> tuple[str | None, bool | None]:
    """Commit of this package's checkout and whether it has changes; None where it is not one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None, None

    def git(*args: str) -> str | None:
        command = ["git", "-C", str(root), *args]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else None

    commit, status = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no")
    return commit, None if status is None else bool(status)


@cache
def _versions() -> dict[str, str]:
    versions: dict[str, str] = dict.fromkeys(PACKAGES, "not installed")
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def estimate_of(measure: Measure | None) -> Estimate:
    """The value and interval of a measure; NaN if it is not there."""
    if measure is None:
        return Estimate(math.nan)
    return Estimate(measure.value, measure.low, measure.high)
