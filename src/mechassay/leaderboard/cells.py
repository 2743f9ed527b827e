"""Cells of a board: numbers of records, each with what it was measured under and where it is from.

Two cells are compared only if they were measured under the same conditions:

    the version of the column's definition
    the task, its version and settings, but for those of the train split
    the test examples, by the hash of their content; the metric or profile; the dtype
    of a model from a folder or file of the user's, the hash of its weights
    where the best of many sites was chosen: these sites, and what chose them
    constants of an ablation, coefficients of IOI: the train examples that they are from

`conditions` holds these as text. What a method was given to find things on is not among them: it
is shown. The place of a cell is what it was tried on: model, task, variable. A ranking or
features that were read from files are a row of their own, with a hash. Private examples have no
hash here, by which their seed could be guessed, but the name of their epoch. Their cells have no
warnings: one that is about single examples would tell which ones there are.

A cell without a number, or without an interval, says why (`why_lacking`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field

from mechassay.circuits.evaluation.chance import most_tried
from mechassay.circuits.evaluation.differences import AreaName
from mechassay.circuits.scores import SCORES_SHA256
from mechassay.errors import BadFile, BadUsage, MechassayError
from mechassay.leaderboard.rules import BoardColumn, BoardRules, CandidateSites
from mechassay.leaderboard.track import HEADER_FILE, SubmissionHeader
from mechassay.results.curves import CONTROL
from mechassay.results.reading import has_values, read_record
from mechassay.results.records import IDENTITY, Measure, Number, Record, Stored
from mechassay.results.text import seconds
from mechassay.results.verdict import Verdict
from mechassay.runs.experiment import command_line, experiment_of
from mechassay.runs.folder import RunFolder
from mechassay.stats.bootstrap import LEAST
from mechassay.stats.bounds import decimal, first_that, grid_rank, smallest_rank
from mechassay.stats.intervals import LEVEL
from mechassay.tasks.task import PRIVATE
from mechassay.utils.files import file_hash, no_folder
from mechassay.variables.mib_submission import FEATURES_SHA256

BOUND = "bound "
MOST = 10**6


def why_lacking(record: Record, measure: Measure) -> str:
    """Why a measure of a record is undefined or has no interval; "" if it lacks nothing, or if the
    record does not tell.

    The reason says what would be needed:

        percentile's bound      an order statistic that is likely enough above the percentile:
                                log(0.05) / log(p) inputs of each side of a grid, or pairs
        percentile's interval   on a grid at least `stats.bootstrap.LEAST` inputs on either side
                                of the percentile; of independent pairs, an order statistic at
                                either end
        any other number        that no example is undefined; it counts those that are
    """
    undefined = math.isnan(measure.value)
    is_bound = measure.name.startswith(BOUND)
    if not undefined and (is_bound or math.isfinite(measure.low + measure.high)):
        return ""  # A bound is an end of an interval itself.
    if undefined and measure.n_undefined:
        return f"{measure.n_undefined:,} of {measure.n:,} examples are undefined"
    p = _percentile(measure.name.removeprefix(BOUND))
    if p is None:
        return ""
    given = record.specs["task"].args if "task" in record.specs else {}
    if given.get("population") is True:
        return "no interval: these are all pairs that exist"
    what = "a bound" if is_bound else "an interval"
    if given.get("same"):
        return f"too few pairs of one stratum for {what}"
    if given.get("design") == "grid":
        needed = grid_for_bound(p) if is_bound else grid_for_interval(p)
        sides = f"{given.get('n_clean')} × {given.get('n_corrupted')}"
        return f"{what} needs {needed} × {needed} prompts, here {sides}"
    level = LEVEL if is_bound else (1 + LEVEL) / 2
    return f"{what} needs {pairs_for(p, level):,} pairs"


@cache
def grid_for_bound(p: float) -> int:
    """Prompts that each side of a grid needs for a bound of the percentile p."""
    return first_that(lambda n: grid_rank(n, n, p, LEVEL) is not None, 1, MOST)


def grid_for_interval(p: float) -> int:
    """Prompts that each side of a grid needs for an interval of the percentile p."""
    return math.ceil(LEAST / min(decimal(p), 1 - decimal(p)))


@cache
def pairs_for(p: float, level: float) -> int:
    """Independent pairs that a bound of the percentile p needs at a level."""
    return first_that(lambda n: smallest_rank(n, p, level) is not None, 1, MOST)


def _percentile(name: str) -> float | None:
    """The share that the name of a percentile says: 0.99 of "99%"."""
    number = name.removesuffix("%")
    if number == name:
        return None
    try:
        share = float(decimal(float(number)) / 100)
    except ValueError:
        return None
    return share if 0 < share < 1 else None


Origin = Literal["recomputed", "as reported"]
PrivateSets = dict[tuple[str, ...], list[str]]
"""Hashes of private examples, by epoch, task, model and how many there are."""
OF_TRAINING = ("train_split", "train_limit")
"""Settings of a task that say what a method was given, not what it is measured on."""
RECORDS, PLAN = "records", "plan.json"
COPY, RUNS = "submission", "runs"
"""The folders of a submission and of its runs, beside what says which submission it is."""
OF_SUBMISSION = "submission "
"""How the source of a submission's cell begins."""
WITHHELD = "withheld: no interval says which digits are resolved"
NO_VALUES = "The record holds no values of single examples, so its numbers were not recomputed."
_OF_FILE = re.compile(r" \(file [0-9a-f]{8}\)$")
FOUND_ON_TRAIN = ("mean", "optimal")
"""Ablations whose constants are those of the train examples."""


class EarlierValue(Stored):
    """A number that stood in a cell before the newest."""

    value: Number
    settings: str
    sha256: str
    created: str


class BoardCell(Stored):
    """One number of a board.

    Attributes:
        row: what is ranked: a method or a submission.
        place: what it was tried on, by role.
        version: of the column's definition.
        n, n_undefined: what the number is of, and how many of them have none.
        examples: test examples, or pairs; 0 of a number as reported, which does not say it.
        reason: why there is no number, or no interval; "" if nothing is lacking.
        controls: the same measure of the record's controls, by name.
        conditions: what has to be the same for two cells to be compared.
        beats_random: of how many rows it may be the best and still be better than random rankings,
            see `circuits.evaluation.chance`; None where its record does not tell.
        failing: controls with a known answer that the record fails.
        file, sha256: the record, relative to the folder of runs, and the hash of its bytes.
        command: that makes the record; "" where no command does.
        source: where a number as reported stands, or which submission it is of.
        private: whether its examples are those of a private split; there are no warnings then.
        earlier: what stood here before, the newest first.
    """

    board: str
    column: str
    version: int
    row: str
    place: dict[str, str]
    value: Number
    low: Number = math.nan
    high: Number = math.nan
    n: int = 0
    n_undefined: int = 0
    examples: int = 0
    reason: str = ""
    controls: dict[str, Number] = Field(default_factory=dict)
    beats_random: int | None = None
    origin: Origin = "recomputed"
    conditions: dict[str, str] = Field(default_factory=dict)
    failing: list[str] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    settings: str = ""
    seconds: Number = math.nan
    file: str = ""
    sha256: str = ""
    command: str = ""
    created: str = ""
    source: str = ""
    private: bool = False
    earlier: list[EarlierValue] = Field(default_factory=list)

    @property
    def under(self) -> str:
        """The conditions as a short hash: equal for cells that may be compared."""
        text = json.dumps(self.conditions, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def row_in_record(self) -> str:
        """The row as its record calls it: without the hash of a file."""
        return _OF_FILE.sub("", self.row)

    @property
    def submission(self) -> str:
        """The name of the submission that it is of; "" if it is of none."""
        name = self.source.removeprefix(OF_SUBMISSION)
        return "" if name == self.source else name

    @property
    def examples_of(self) -> str:
        """The task whose examples it was measured on; of a number as reported, as it is called."""
        return self.conditions.get("task", "").partition("@")[0] or self.place.get("task", "")

    @property
    def id(self) -> str:
        """A name of the cell: row, place and column; with `@under`, unique on its board."""
        return "/".join([self.row, *self.place.values(), self.column])

    @property
    def full_id(self) -> str:
        """The name with the conditions."""
        return f"{self.id}@{self.under}"


def read_cells(rules: BoardRules, folder: Path) -> tuple[list[BoardCell], list[str]]:
    """The cells of a board in all runs in a folder and below it, and files that cannot be read.

    Raises:
        BadFile: there is no such folder.
    """
    if not folder.is_dir():
        raise BadFile(f"{folder}: {no_folder(folder)}.")
    cells: list[BoardCell] = []
    unreadable: list[str] = []
    private: PrivateSets = {}
    for run in run_folders(folder):
        submission = submission_of(run)
        for file in sorted((run / RECORDS).rglob("*.json")):
            try:
                record = read_record(file)
            except BadFile as error:
                unreadable.append(str(error))
                continue
            if record.kind not in rules.kinds:
                continue
            about: dict[str, Any] = {
                "file": file.relative_to(folder).as_posix(),
                "sha256": file_hash(file),
                "command": _command(run),
            }
            if submission is not None:
                about["row"] = submission.row(record)
                about["source"] = f"{OF_SUBMISSION}{submission.declaration.name}"
                about["command"] = ""  # It would name files of the machine that evaluated it.
                if not is_private(record):
                    record = record.changed(
                        warnings=[*record.warnings, *submission.in_sample(record)]
                    )
            cells += cells_of(rules, numbered(record, private), **about)
    return cells, unreadable


def run_folders(folder: Path) -> Iterator[Path]:
    """The runs in a folder and below it; of a submission's results those of its evaluation alone.

    What was handed in lies beside them, and may hold what looks like a run.
    """
    for path, names, files in os.walk(folder):
        if PLAN in files:
            names.clear()
            yield Path(path)
        elif HEADER_FILE in files:
            names[:] = [name for name in names if name == RUNS]
        names.sort()


def submission_of(run: Path) -> SubmissionHeader | None:
    """The submission that a run evaluates; None if it evaluates none.

    Raises:
        BadFile: see `SubmissionHeader.read`.
    """
    return SubmissionHeader.read(run.parent.parent) if run.parent.name == RUNS else None


def is_private(record: Record) -> bool:
    """Whether any examples of a record are those of a private split."""
    return any(chosen.split == PRIVATE for chosen in record.data.values())


def numbered(record: Record, private: PrivateSets) -> Record:
    """The record; a private one with a name of its examples in place of their hash.

    The name has the epoch and how many they are. Examples of one epoch, task, model and number are
    the same unless a task was changed meanwhile: these are counted in the order of reading.

    Args:
        private: the examples so far, to which this may add.
    """
    if not is_private(record):
        return record
    about, task, model = record.provenance, record.specs.get("task"), record.specs.get("model")
    epoch = str(task.args.get("epoch", "")) if task is not None else ""
    names = [f"{spec.name}@{spec.version}" for spec in (task, model) if spec is not None]
    n = max(chosen.kept for chosen in record.data.values() if chosen.split == PRIVATE)
    sets = private.setdefault((epoch, *names, str(n)), [])
    if about.data_hash not in sets:
        sets.append(about.data_hash)
    number = sets.index(about.data_hash) + 1
    words = [f"{n:,} private examples", f"of {epoch}" if epoch else ""]
    name = " ".join(filter(None, words)) + (f", set {number}" if number > 1 else "")
    return record.changed(provenance=about.model_copy(update={"data_hash": name}))


def cells_of(rules: BoardRules, record: Record, **about: Any) -> Iterator[BoardCell]:
    """The cells that a record has on a board.

    Args:
        about: where it is from: `file`, `sha256`, `command`; `row` and `source` of a submission.

    Raises:
        BadUsage: a record of another kind.
    """
    if record.kind not in rules.kinds:
        raise BadUsage(
            f"The board {rules.name} reads {', '.join(rules.kinds)}; got a record of {record.kind}."
        )
    names = {role: spec.name for role, spec in record.specs.items()} | record.cell
    place = {role: names[role] for role in rules.place if names.get(role)}
    no_values = [] if has_values(record) else [NO_VALUES]
    common: dict[str, Any] = {
        **about,
        "board": rules.name,
        "place": place,
        "failing": [check.name for check in record.checks if not check.passed],
        "warnings": []
        if is_private(record)
        else [
            *record.transfers,
            *no_values,
            *([record.conclusion] if has_no_verdict(record) else []),
            *record.warnings,
        ],
        "created": record.provenance.created,
        "seconds": seconds(record),
        "private": is_private(record),
    }
    row_of_submission = common.pop("row", "")
    for column in rules.columns:
        for row, measure in _measures(rules, column, record, names):
            withheld = common["private"] and math.isnan(measure.value)
            yield BoardCell(
                column=column.name,
                version=column.version,
                row=row_of_submission or row,
                **{key: getattr(measure, key) for key in ("value", "low", "high", "n")},
                n_undefined=measure.n_undefined,
                examples=_examples(record, measure),
                reason=WITHHELD if withheld else why_lacking(record, measure),
                controls=_controls(rules, record, measure),
                beats_random=_beats_random(record, measure),
                conditions=_conditions(rules, record, column),
                settings=_settings(record, rules.row),
                **common,
            )


def _measures(
    rules: BoardRules, column: BoardColumn, record: Record, names: Mapping[str, str]
) -> Iterator[tuple[str, Measure]]:
    """The rows that a record has in a column, each with its measure."""
    file = given_hash(record)
    if file or not column.many_rows:
        measure = column.measure_in(record)
        row = names.get(rules.row) or names.get("method")
        if row and file:
            row = f"{row} (file {file[:8]})"
        if measure is not None and row:
            yield row, measure
        return
    begin, _, end = column.measure.partition("{row}")
    for measure in record.measures:
        inner = measure.name[len(begin) : len(measure.name) - len(end)]
        same = measure.of == "result" and inner and measure.name == f"{begin}{inner}{end}"
        if same:
            yield inner, measure


def given_hash(record: Record) -> str:
    """The hash of what a record measures, where this was read from files; else ""."""
    settings = record.method.args if "method" in record.specs else {}
    return str(settings.get(SCORES_SHA256) or settings.get(FEATURES_SHA256) or "")


def _examples(record: Record, measure: Measure) -> int:
    """How many test examples a record has; where it does not say so, what the number is of."""
    test = record.data.get("test")
    return measure.n if test is None else test.kept


def _controls(rules: BoardRules, record: Record, measure: Measure) -> dict[str, float]:
    """The same of the controls: measures, or lines of the table of a distribution."""
    held = [
        (own_measure.of, own_measure.name, own_measure.value) for own_measure in record.measures
    ]
    if record.has_table(rules.distribution):
        lines = record.table(rules.distribution)
        for begin, key in (("", "value"), (BOUND, "bound")):
            names = (f"{begin}{statistic}" for statistic in lines.columns["statistic"])
            numbers = lines.numbers(key).tolist()
            held += zip(map(str, lines.columns["of"]), names, numbers, strict=True)
    return {
        of.removeprefix(CONTROL): value
        for of, name, value in held
        if name == measure.name and of.startswith(CONTROL)
        if not (name.startswith(BOUND) and math.isnan(value))
    }


def has_no_verdict(record: Record) -> bool:
    """Return whether a record's own conclusion was that its pairs or model allow no verdict."""
    return record.verdict in (Verdict.NO_VERDICT, Verdict.NOTHING)


def _beats_random(record: Record, measure: Measure) -> int | None:
    areas = get_args(AreaName)
    if measure.name not in areas or not record.has_table("random areas"):
        return None
    return 0 if has_no_verdict(record) else most_tried(record, areas[areas.index(measure.name)])


def _conditions(rules: BoardRules, record: Record, column: BoardColumn) -> dict[str, str]:
    task, metric, method = (record.specs.get(role) for role in ("task", "metric", "method"))
    conditions: dict[str, Any] = {"definition": f"{column.name}@{column.version}"}
    if task is not None:
        conditions["task"] = f"{task.name}@{task.version}"
        # How many examples were asked for is told by the examples.
        left_out = (*OF_TRAINING, "limit")
        conditions |= {key: value for key, value in task.args.items() if key not in left_out}
    if metric is not None:
        settings = json.dumps(metric.args, sort_keys=True) if metric.args else ""
        conditions["metric"] = f"{metric.name}@{metric.version}{settings}"
    if method is not None:
        conditions |= {
            key: method.args[key] for key in ("compat", "choose_on") if key in method.args
        }
    if conditions.get("ablation") in FOUND_ON_TRAIN and "train" in record.data:
        conditions["constants from"] = record.data["train"].hash
    if column.name == "mse" and "train" in record.data:
        conditions["coefficients from"] = record.data["train"].hash
    if rules.candidates is not None:
        # Sites of given features are their finder's choice, as the features are.
        as_given = rules.candidates.given_with_features and given_hash(record)
        conditions["chosen of"] = (
            "sites as given" if as_given else _chosen_of(record, rules.candidates)
        )
    if column.against:
        names = {m.of for m in record.measures if m.name == column.against}
        conditions["controls"] = ", ".join(sorted(names - {"result"}))
    model = record.specs.get("model")
    if model is not None and (digest := model.args.get(IDENTITY) or model.args.get("weights")):
        conditions["weights"] = digest  # Another folder may have the same name.
    conditions["dtype"] = record.provenance.dtype
    conditions["examples"] = record.provenance.data_hash
    return {key: x if isinstance(x, str) else json.dumps(x) for key, x in conditions.items()}


def _chosen_of(record: Record, candidates: CandidateSites) -> str:
    """How many sites the best was chosen of, and a hash of which."""
    if not record.has_table(candidates.table):
        return ""
    columns = record.table(candidates.table).columns
    sites = sorted(set(zip(*(map(str, columns[key]) for key in candidates.columns), strict=True)))
    digest = hashlib.sha256(json.dumps(sites).encode()).hexdigest()[:8]
    return f"{len(sites)} sites, {digest}"


def _settings(record: Record, role: str) -> str:
    """The settings of the method, and what it was given to find things on."""
    method, task = record.specs.get(role) or record.specs.get("method"), record.specs.get("task")
    arguments: dict[str, Any] = dict(method.args) if method is not None else {}
    given = {} if task is None else {key: task.args[key] for key in OF_TRAINING if key in task.args}
    return ", ".join(f"{key}={value}" for key, value in {**arguments, **given}.items())


def _command(run: Path) -> str:
    """The command of a run; "" where its plan is of another version or has no command."""
    try:
        return command_line(experiment_of(RunFolder(run).plan()), Path(run.name))
    except (MechassayError, TypeError):
        return ""


def without_conditions(full_id: str) -> str:
    """A cell's name without its conditions, which stand behind the last "@": a row may have one
    too, before a size.
    """
    return full_id.rpartition("@")[0]


def told_apart(full_ids: Sequence[str]) -> list[str]:
    """What finds each cell: its name, with its conditions where several share the name."""
    count = Counter(map(without_conditions, full_ids))
    return [
        full if count[without_conditions(full)] > 1 else without_conditions(full)
        for full in full_ids
    ]


def newest(cells: Iterable[BoardCell]) -> list[BoardCell]:
    """One cell for each row, place, column, origin and conditions: the newest, with the earlier
    ones in it; in first order.
    """
    groups: dict[tuple[str, ...], list[BoardCell]] = {}
    for cell in cells:
        groups.setdefault((cell.full_id, cell.origin, cell.submission), []).append(cell)
    board_cells: list[BoardCell] = []
    for group in groups.values():
        # Of records made in the same second, the order of files decides, not that of reading.
        last, *before = sorted(group, key=lambda cell: (cell.created, cell.file), reverse=True)
        keys = ("value", "settings", "sha256", "created")
        earlier = [EarlierValue(**{key: getattr(old, key) for key in keys}) for old in before]
        board_cells.append(last.model_copy(update={"earlier": earlier}))
    return board_cells
