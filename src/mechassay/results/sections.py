"""Sections that a page of any records has: warnings, measures, tables, facts and values."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from mechassay.results.curves import arguments, labels
from mechassay.results.page import (
    Block,
    Column,
    Facts,
    Fold,
    Notice,
    Report,
    Row,
    Section,
    Terms,
    Text,
    TextTable,
)
from mechassay.results.records import Failure, Measure, Record, Scalar, Selection, Spec, Table
from mechassay.results.text import CHANCE_DECIMALS, seconds
from mechassay.utils.display import interval, number

MAX_EXAMPLES = 200
"""Rows of the table of examples; the JSON record holds them all."""
MAX_RECORDS = 20
"""Records of which a page has the values of every example."""
LONG = 12
"""Rows from which a table is folded."""
MOST_WARNINGS = 5
"""Warnings that a page shows; others are folded."""
MOST_NAMED = 6
"""Records that a warning names; others are counted, and have it in their own page or JSON."""
MOST_TABLES = 6
"""Tables that a page shows; sections beyond are folded."""

Facets = Callable[[Record], Mapping[str, str]]


# What is wrong


def failed_checks(record: Record) -> list[str]:
    """What is wrong with a record's controls, in words; nothing if all have their known answer."""
    says = (
        check.says
        or f"{check.name} must be {check.must_be}: {check.n_wrong:,} of {check.n:,} are not, by up"
        f" to {number(check.largest)}."
        for check in record.checks
        if not check.passed
    )
    return list(dict.fromkeys(says))


def failed_checks_notice(records: Sequence[Record]) -> list[Block]:
    """Controls that fail, if any."""
    named = zip(records, labels(records), strict=True)
    lines = [(f"{label}: {text}", "") for record, label in named for text in failed_checks(record)]
    title = "Controls fail: do not use these results."
    return [Notice(title, tuple(lines), "broken")] if lines else []


def warnings_notice(records: Sequence[Record]) -> list[Block]:
    """Every distinct warning, and the records it is about unless it is about all of them."""
    about: dict[str, list[str]] = {}
    for record, label in zip(records, labels(records), strict=True):
        for text in record.warnings:
            if text not in failed_checks(record):
                about.setdefault(text, []).append(label)
    lines = list[tuple[str, str]]()
    for text, names in about.items():
        rest = [f"and {len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
        of_some = len(names) < len(records)
        lines.append((text, "; ".join([*names[:MOST_NAMED], *rest]) if of_some else ""))
    if not lines:
        return []
    first, more = lines[:MOST_WARNINGS], lines[MOST_WARNINGS:]
    blocks: list[Block] = [Notice(f"Warning{'s' * (len(lines) > 1)}", tuple(first))]
    if more:
        title = f"{len(more)} more warning{'s' * (len(more) > 1)}"
        blocks.append(Fold(title, (Notice(title, tuple(more)),), in_markdown=True))
    return blocks


def failures_text(failures: Sequence[Failure]) -> list[Block]:
    """How many cells failed, if any."""
    n = sum(failure.status == "failed" for failure in failures)
    sentence = f"{n} {'cell' if n == 1 else 'cells'} failed; see the table."
    return [Text(sentence, "verdict")] if n else []


def failure_row(failure: Failure, first: str = "method") -> Row:
    """A cell without a result: its name, and where and why it has none."""
    others = ", ".join(value for key, value in failure.cell.items() if key != first)
    where = f" ({others})" if others else ""
    reason = f"{failure.status}{where}: {failure.error}: {failure.message}"
    return Row((failure.cell.get(first, "cell"), reason), "failure")


def failures_table(failures: Sequence[Failure], first: str) -> list[TextTable]:
    """The cells without a result, if any; `first` is what they are called by."""
    rows = tuple(failure_row(failure, first) for failure in failures)
    columns = (Column("cell", numeric=False), Column(""))
    return [TextTable("Without a result", columns, rows)] if rows else []


def framed(
    report: Report,
    answer: Sequence[Block],
    unfolded: Sequence[Section],
    *,
    figure: Sequence[Block] = (),
    wrong: Sequence[Block] | None = None,
    folded: Sequence[Section | Fold] = (),
    reading: Mapping[str, str] | None = None,
    facts: Sequence[Section] | None = None,
    values: Sequence[Section] | None = None,
) -> list[Section]:
    """What every page is made of. First broken controls, the answer in words, a figure of it,
    failures and warnings. Then the sections that are shown, of at most `MOST_TABLES` tables. Then,
    folded: other sections, how to read the page, what was run on what, values, every measure.

    Args:
        wrong: what must not be overlooked; the controls that fail if None.
        reading: what words mean.
        facts, values: what was run and the values of every example; those of all records if None.
    """
    records = report.records
    first = (
        *(failed_checks_notice(records) if wrong is None else wrong),
        *(answer or [Text("There are no results.", "verdict")]),
        *figure,
        *failures_text(report.failures),
        *warnings_notice(records),
    )
    n_tables, kept, beyond = 0, list[Section](), list[Section]()
    for section in unfolded:
        n_tables += sum(isinstance(block, TextTable) for block in section.blocks)
        (kept if n_tables <= MOST_TABLES else beyond).append(section)
    terms = [Section("How to read this", (Terms(reading),))] if reading else []
    of_runs = facts_section(records) if facts is None else facts
    of_examples = values_section(records) if values is None else values
    numbers = [*of_examples, *_all_numbers(records)]
    folds = [_folded(section, True) for section in (*beyond, *folded, *terms, *of_runs)]
    folds += [_folded(section, False) for section in numbers]
    return [Section("", first), *kept, *([Section("More", tuple(folds))] if folds else [])]


def _folded(part: Section | Fold, in_markdown: bool) -> Fold:
    if isinstance(part, Fold):
        return part
    return Fold(part.title, part.blocks, in_markdown=in_markdown)


def checks_table(records: Sequence[Record]) -> TextTable:
    """Every control with a known answer."""
    unit = next((check.unit for record in records for check in record.checks if check.unit), "")
    rows: dict[Row, None] = {}
    for record in records:
        for check in record.checks:
            cells = (check.name, check.must_be, f"{check.largest:.1e}", f"{check.n:,}")
            passed = "yes" if check.passed else "NO"
            rows[Row((*cells, passed), "" if check.passed else "failure")] = None
    heading = f"largest difference{f', {unit}' if unit else ''}"
    columns = ("control", "must be", heading, "n", "passed")
    return TextTable.of("Controls", columns, list(rows), words=True)


def checks_section(records: Sequence[Record]) -> list[Section]:
    """Every control with a known answer, if there is one."""
    table = checks_table(records)
    return [Section(table.title, (table,))] if table.rows else []


# Measures


def shown_measures(records: Sequence[Record]) -> list[Measure]:
    """One measure of a result for each name that some record has, in the order of the records."""
    by_name: dict[str, Measure] = {}
    for record in records:
        for measure in record.measures:
            if measure.of == "result":
                by_name.setdefault(measure.name, measure)
    return list(by_name.values())


def measure_column(measure: Measure, optional: int = 0) -> Column:
    """The column of a measure: its title and unit."""
    unit = f", {measure.unit}" if measure.unit else ""
    return Column(f"{measure.heading}{unit}", optional=optional)


def better_direction_note(measures: Iterable[Measure]) -> str:
    """Which way is better, and what brackets hold."""
    better: dict[str, list[str]] = {"up": [], "down": []}
    for measure in measures:
        if measure.better:
            better[measure.better].append(measure.heading)
    texts = [
        f"{', '.join(headings)}: {'higher' if way == 'up' else 'lower'} is better."
        for way, headings in better.items()
        if headings
    ]
    return " ".join([*texts, "Brackets: 95 % interval."])


def meanings(records: Sequence[Record]) -> dict[str, str]:
    """What measures say of themselves, by their headings."""
    return {
        measure.heading: measure.meaning
        for record in records
        for measure in record.measures
        if measure.meaning
    }


def measures_table(report: Report) -> TextTable:
    """All results: a row a record, a column a measure."""
    records = report.records
    measures = shown_measures(records)
    columns = [Column("record", numeric=False), *map(measure_column, measures), Column("n")]
    columns.append(Column("seconds"))
    rows: list[Row] = []
    for record, label in zip(records, labels(records), strict=True):
        numbers = [measured(record.measure(m.name)) for m in measures]
        rows.append(Row((label, *numbers, f"{record.n:,}", seconds_text(record))))
    rows += map(failure_row, report.failures)
    return TextTable("Measures", tuple(columns), tuple(rows), better_direction_note(measures))


def seconds_text(record: Record) -> str:
    """All time spent on a record; empty if none was noted."""
    spent = seconds(record)
    return "" if math.isnan(spent) else f"{spent:.3g}" if spent < 100 else f"{spent:,.0f}"


def measured(measure: Measure | None, *, least: int = 0) -> str:
    """A measure and its interval; empty if there is none."""
    if measure is None:
        return ""
    return interval(measure.value, measure.low, measure.high, least=least)


def _all_numbers(records: Sequence[Record]) -> list[Section]:
    """Every measure of every record, of controls and differences too."""
    rows = [
        (label, m.heading, m.of, _plain_measure(m), m.unit, f"{m.n:,}", f"{m.n_undefined:,}")
        for record, label in zip(records, labels(records), strict=True)
        for m in record.measures
    ]
    columns = ("record", "measure", "of", "value", "unit", "n", "undefined")
    table = TextTable.of("", columns, rows, words=True)
    return [Section(f"All {len(rows):,} numbers", (table,))] if rows else []


def _plain_measure(measure: Measure) -> str:
    """A measure as a number, in as many digits as small ones need."""
    if math.isfinite(measure.low) and measure.high > measure.low:
        return measured(measure)
    return number(measure.value) if math.isnan(measure.value) else f"{measure.value:.4g}"


# Tables


def stored_table(table: Table, title: str = "") -> TextTable:
    """A table of a record as it is."""
    columns = tuple(
        Column(name, all(x is None or isinstance(x, int | float) for x in column))
        for name, column in table.columns.items()
    )
    rows = tuple(Row(tuple(map(scalar_text, row.values()))) for row in table.rows())
    return TextTable(title or table.name, columns, rows)


def scalar_text(value: Scalar) -> str:
    """A value of a table or an argument of a plug-in."""
    match value:
        case None:
            return ""
        case bool() | str():
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.4g}"


def tables_section(records: Sequence[Record]) -> list[Section]:
    """The tables of every record; long ones are folded."""
    blocks: list[Block] = []
    for record, label in zip(records, labels(records), strict=True):
        for table in record.tables:
            text_table = stored_table(table, f"{label}: {table.name}")
            blocks.append(
                text_table if len(table) < LONG else Fold(text_table.title, (text_table,))
            )
    return [Section("Tables", tuple(blocks))] if blocks else []


# What was run on what


def facts_section(records: Sequence[Record], more: Facets | None = None) -> list[Section]:
    """What was run on what: a column a record, in which equal neighbours are one cell."""
    columns = [_facts(record, more) for record in records]
    rows: list[tuple[str, tuple[tuple[str, int], ...]]] = []
    for name in dict.fromkeys(name for column in columns for name in column):
        cells = [column.get(name, "") for column in columns]
        if any(cells):
            rows.append((name, tuple((text, len(list(same))) for text, same in groupby(cells))))
    return [Section("What was run on what", (Facts(tuple(rows)),))] if rows else []


def _facts(record: Record, more: Facets | None) -> dict[str, str]:
    about = record.provenance
    versions = [f"Python {about.python}", *map(" ".join, about.packages.items())]
    changed = ", with uncommitted changes" if about.dirty else ""
    facts = dict(_specs(record))
    for m in record.measures:
        if m.of == "model":
            facts[m.heading] = measured(m, least=CHANCE_DECIMALS if m.better else 0)
    for role, chosen in record.data.items():
        name = f"{role} pairs" if role in ("train", "test") else role
        facts[name] = selection_text(chosen)
    facts |= {**_values_facts(record), **(more(record) if more else {})}
    tf32 = "" if about.tf32 == "auto" else f"TF32 {about.tf32}"
    where = (about.device, about.dtype, tf32, f"{about.threads} threads")
    for key, value in record.spent.items():
        if math.isfinite(value):
            facts[key.replace("_", " ")] = f"{value:,.4g}"
    return {
        **facts,
        "seed": str(about.seed),
        "data hash": about.data_hash,
        "digests": _digests_text(record),
        "device": ", ".join(filter(None, where)),
        "machine": about.machine,
        "commit": (about.commit or "not a checkout") + changed,
        "packages": ", ".join(versions),
        "created": about.created,
    }


def _digests_text(record: Record) -> str:
    """Return a digest for each role: the digest of a model's weights, or of a task's or a file's
    content.
    """
    texts = [
        f"{role} {digests.get('weights') or digests.get('content')}"
        for role, digests in record.identities.items()
    ]
    return ", ".join(texts) or "not known: the record has no identities"


def _specs(record: Record) -> Iterator[tuple[str, str]]:
    """What took part. The task's and the model's arguments are what was run; others' are named."""
    names = {"n_edges": "edges"}
    for role in ("method", "model", "task", *record.specs):
        spec = record.specs.get(role)
        if spec is None:
            continue
        yield role, versioned(spec) if role != "model" else spec.name
        if role in ("model", "task"):
            for key, value in spec.args.items():
                text = ", ".join(map(scalar_text, value if isinstance(value, list) else [value]))
                yield names.get(key, key.replace("_", " ")), text
        else:
            yield f"{role}'s settings", arguments(spec)


def versioned(spec: Spec) -> str:
    """A plug-in and the version of its definition."""
    return f"{spec.name} (version {spec.version})" if spec.name else ""


def _values_facts(record: Record) -> dict[str, str]:
    values = record.values
    if values is None:
        return {}
    if values.file:
        return {"values": f"{values.file}, SHA-256 {values.sha256[:16]}"}
    return {f"{values.unit}s": f"{len(values.ids):,} in {record.n_groups:,} groups"}


def selection_text(chosen: Selection) -> str:
    """What was kept of a split, what was dropped, and how its tokens were aligned."""
    words = {"cut": "cut back", "forced": "written on"}
    words["partial"] = "compared by the first of several tokens"
    words["special"] = "begin with the tokenizer's special tokens"
    counts = [f"{chosen.kept} kept"] if chosen.kept else []
    counts += [f"{count:,} dropped: {reason}" for reason, count in chosen.dropped.items()]
    counts += [f"{n} {words.get(how, how)}" for how, n in chosen.alignment.items() if n]
    counts += [f"{count:,} {name}" for name, count in chosen.counts.items()]
    return "; ".join([*counts, f"hash {chosen.hash[:12]}"])


# Values


def values_section(
    records: Sequence[Record],
    about: str = "",
    column: Callable[[str], str | None] = lambda name: name,
) -> list[Section]:
    """The values of every example, folded.

    Args:
        column: the heading of a column of the values, None to leave it out.
    """
    named = zip(records, labels(records), strict=True)
    held = [(label, record) for record, label in named if record.values and record.values.ids]
    if not held or len(held) > MAX_RECORDS:
        return []
    blocks: list[Block] = [Text(about, "soft")] if about else []
    blocks += [_values(label, record, column) for label, record in held]
    return [Section("Values of every example", tuple(blocks))]


def _values(label: str, record: Record, heading: Callable[[str], str | None]) -> Fold:
    assert record.values is not None
    ids, n = record.values.ids, len(record.values.ids)
    titles = {name: title for name in record.values.columns if (title := heading(name)) is not None}
    columns = [record.values.columns[name][:MAX_EXAMPLES] for name in titles]
    values = zip(ids[:MAX_EXAMPLES], *columns, strict=True)
    rows = [(name, *map(number, numbers)) for name, *numbers in values]
    cut = f"The first {MAX_EXAMPLES} of {n:,}; the JSON record holds all."
    table = TextTable.of("", ("id", *titles.values()), rows)
    notes = (Text(cut, "soft"),) if n > MAX_EXAMPLES else ()
    return Fold(f"{label}: {n:,} {record.values.unit}s", (*notes, table))


def run_section(facts: Sequence[Mapping[str, str]]) -> list[Section]:
    """What was run, a row each."""
    rows = [tuple(row.values()) for row in facts]
    table = TextTable.of("", tuple(facts[0]) if facts else (), rows, words=True)
    return [Section("What was run on what", (table,))] if facts else []


def svg_parts(drawing: object) -> tuple[str, str, str]:
    """A drawing, its title and its description, which an SVG carries itself."""
    if not isinstance(drawing, str):
        svg, name, about = (str(getattr(drawing, key)) for key in ("svg", "title", "about"))
        return svg, name, about
    name = re.search(r'aria-label="([^"]*)"', drawing)
    about = re.search(r"<desc>(.*?)</desc>", drawing, flags=re.DOTALL)
    texts = [html.unescape(match[1]) if match else "" for match in (name, about)]
    return drawing, texts[0], texts[1]
