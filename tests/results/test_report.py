"""The index of runs: a row a record, links to reports, one script that the page allows by hash."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mechassay.errors import BadFile
from mechassay.results.records import Check, Failure, Record
from mechassay.results.report import write_index

Make = Callable[..., Record]


def save(folder: Path, *records: Record, failures: tuple[Failure, ...] = ()) -> None:
    (folder / "records").mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    for number, record in enumerate(records):
        record.save(folder / "records" / f"{number}.json")
    (folder / "failures").mkdir()
    for number, failure in enumerate(failures):
        (folder / "failures" / f"{number}.json").write_text(failure.model_dump_json())


def test_every_record_below_is_a_row_that_leads_to_its_report(
    make_record: Make, tmp_path: Path
) -> None:
    wrong = Check(name="full", must_be="0", largest=1.0, n=2, n_wrong=1)
    save(tmp_path / "a run", make_record("eap"), make_record("nap", checks=[wrong]))
    (tmp_path / "a run" / "report.html").write_text("")
    failure = Failure(cell={"model": "m", "method": "ugs"}, error="E", message="broke")
    save(tmp_path / "deep" / "er", make_record("ifr"), failures=(failure,))
    (tmp_path / "not-a-run").mkdir()
    page = write_index(tmp_path).read_text()
    assert "4 results of 2 runs." in page and page.count("<tr") == 5
    assert '<a href="a%20run/report.html">a run</a>' in page and page.count("<a ") == 2
    assert "deep/er" in page and "CPR" in page and "0.90 <span" in page and "2026-01-01" in page
    assert "1 failed" in page and "E: broke" in page and "ugs" in page


def test_what_records_say_is_text_and_only_our_script_runs(
    make_record: Make, tmp_path: Path
) -> None:
    hostile = "</script><script>alert(1)</script>"
    save(tmp_path / "x", make_record(hostile, model=hostile))
    page = write_index(tmp_path).read_text()
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page and "unsafe-inline'; script" not in page
    assert "default-src 'none'" in page and "alert" not in script and "alert(1)" in page


def test_what_cannot_be_read_is_said(make_record: Make, tmp_path: Path) -> None:
    save(tmp_path / "broken", make_record("eap"))
    (tmp_path / "broken" / "records" / "x.json").write_text("{")
    (tmp_path / "broken" / "failures" / "y.json").write_text("[]")
    page = write_index(tmp_path).read_text()
    assert "Files that cannot be read" in page and "1 result of 1 run." in page
    assert "x.json: not a record" in page and "y.json: not a failure" in page


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="no such folder"):
        write_index(tmp_path / "none")
