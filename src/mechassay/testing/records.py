"""What every record has to satisfy; authors of jobs and metrics may run it on their own.

from mechassay.testing import check_record

check_record(record)
"""

from __future__ import annotations

import math
from html import escape

from mechassay.records import Record, page_of, read_record
from mechassay.report.page import render


def check_record(record: Record) -> None:
    """Raise AssertionError at the first promise that the record breaks."""
    text = record.model_dump_json()
    assert read_record(text).model_dump_json() == text, "it is not what its file says"
    places = [(measure.name, measure.of) for measure in record.measures]
    assert len(set(places)) == len(places), "two measures of the same thing share a name"
    tables = [table.name for table in record.tables]
    assert len(set(tables)) == len(tables), "two tables share a name"
    for measure in record.measures:
        assert 0 <= measure.n_undefined <= max(measure.n, 1), f"{measure.name}: {measure}"
        if not math.isnan(measure.low) and not math.isnan(measure.value):
            assert measure.low <= measure.high, f"{measure.name}: the interval is empty"
    for table in record.tables:
        keys = list(zip(*(table.columns.get(key, []) for key in table.keys), strict=True))
        assert len(set(keys)) == len(keys), f"the keys of {table.name} do not tell its rows apart"
    kind = page_of(record.kind)
    page = render(kind.title([record]), kind.sections([record]))
    for measure in record.measures:
        assert escape(measure.heading) in page, f"{measure.name} is not on the page"
    for check in record.checks:
        assert escape(check.name) in page, f"the check {check.name!r} is not on the page"
    for warning in record.warnings:
        assert escape(warning[:40]) in page, f"a warning is not on the page: {warning}"
