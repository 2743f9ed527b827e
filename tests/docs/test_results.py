"""CSV files of results parse, pages quote what they hold, and `tools/tables.py` writes them."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RESULTS = sorted((DOCS / "results").glob("*.csv"))
TOOL = ROOT / "tools" / "tables.py"
FIELDS = ["run", "table", "row", "column", "value", "low", "high", "n"]
LINKED = re.compile(r"\]\(([\w./-]*results/[\w-]+\.csv)\)")
NUMBER = r"(-?\d*\.?\d+)"
QUOTED = re.compile(rf"(?<![\d.]){NUMBER} \[{NUMBER}, {NUMBER}\]")
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if LINKED.search(page.read_text("utf-8"))]
RUN = """\
Run eap: it has the highest CMA.

truth, ioi: EAP is best, on 40 pairs.

**Warnings**

- auc (page) is undefined: no pairs.

## Scores

### CMD

| method | ioi | seconds | n |
|---|---|---|---|
| eap | †0.027 [0.012, 0.042] | 1,806 | 40 |
| exact | skipped | – | 40 |

† the best of its column.

### Quantities

| definition | quantity | value | 95 % interval | n |
|---|---|---|---|---|
| page | auc | undefined | none | 24 |
| repaired | auc | 0.3 | [-0.1, 5e-1] | 24 |
| repaired | power | 1 | none | not said |

## How to read this

- **auc**: Area under the curve.
"""


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def is_rounded(quoted: str, held: str) -> bool:
    """Whether a number is another one with as many or fewer digits."""
    n_digits = len(quoted.partition(".")[2])
    return abs(float(quoted) - float(held)) <= 0.5 * 10**-n_digits + 1e-9


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_file_of_results_parses(path: Path) -> None:
    rows = read(path)
    assert rows and list(rows[0]) == FIELDS
    for row in rows:
        assert None not in row and row["run"] and row["table"], row
        assert bool(row["low"]) == bool(row["high"]), row
        if row["low"]:
            assert float(row["low"]) <= float(row["high"]), row


def test_every_file_of_results_is_linked() -> None:
    linked = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in LINKED.findall(page.read_text("utf-8"))
    }
    assert linked == set(RESULTS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_intervals_of_a_page_stand_in_the_files_that_it_links(page: Path) -> None:
    text = page.read_text("utf-8")
    rows = [row for target in set(LINKED.findall(text)) for row in read(page.parent / target)]
    held = [(row["value"], row["low"], row["high"]) for row in rows if row["low"]]
    # The smallest circuit's size and agreement are one cell of text.
    held += [interval for row in rows for interval in QUOTED.findall(row["value"])]
    # A difference may be read from its other end.
    held += [
        tuple(str(-float(row[end])) for end in ("value", "high", "low"))
        for row in rows
        if row["low"] and row["table"].startswith("differences")
    ]
    quoted = set(QUOTED.findall(text))
    assert quoted
    for interval in quoted:
        assert any(all(map(is_rounded, interval, given)) for given in held), interval


def test_tables_of_a_run_become_rows(tmp_path: Path) -> None:
    run, target = tmp_path / "smol" / "tables.md", tmp_path / "out.csv"
    run.parent.mkdir()
    run.write_text(RUN, "utf-8")
    subprocess.run([sys.executable, TOOL, run, target], check=True)
    assert [tuple(row.values()) for row in read(target)] == [
        ("smol", "Verdict", "", "", "Run eap: it has the highest CMA.", "", "", ""),
        ("smol", "Verdict", "", "", "truth, ioi: EAP is best, on 40 pairs.", "", "", ""),
        ("smol", "Warnings", "", "", "auc (page) is undefined: no pairs.", "", "", ""),
        ("smol", "Scores / CMD", "eap", "ioi", "0.027", "0.012", "0.042", "40"),
        ("smol", "Scores / CMD", "eap", "seconds", "1806", "", "", "40"),
        ("smol", "Scores / CMD", "exact", "ioi", "skipped", "", "", "40"),
        ("smol", "Scores / CMD", "exact", "seconds", "", "", "", "40"),
        ("smol", "Scores / Quantities", "page / auc", "value", "undefined", "", "", "24"),
        ("smol", "Scores / Quantities", "page / auc", "95 % interval", "none", "", "", "24"),
        ("smol", "Scores / Quantities", "repaired / auc", "value", "0.3", "-0.1", "5e-1", "24"),
        ("smol", "Scores / Quantities", "repaired / power", "value", "1", "", "", ""),
        ("smol", "Scores / Quantities", "repaired / power", "95 % interval", "none", "", "", ""),
        ("smol", "How to read this", "auc", "", "Area under the curve.", "", "", ""),
    ]


def test_differences_and_tables_of_a_page_come_from_the_run(tmp_path: Path) -> None:
    run, page, target = tmp_path / "smol" / "tables.md", tmp_path / "page.md", tmp_path / "out.csv"
    run.parent.mkdir()
    run.write_text(RUN, "utf-8")
    rows = [
        {"model": "smol", "task": "ioi", "area": area, "a": "eap", "b": "ifr"}
        | {"difference": 0.123456, "low": -0.1, "high": 0.3, "resolved": False}
        for area in ("cma", "cpr")
    ]
    differences = run.with_name("differences.json")
    differences.write_text(json.dumps(rows), "utf-8")
    before = "Words.\n<!-- table: {} -->\nold\n<!-- end -->\nMore words.\n"
    page.write_text(before.format("Which to run") + before.format("CMD"), "utf-8")
    subprocess.run([sys.executable, TOOL, run, differences, target, "--page", page], check=True)
    assert list(read(target)[-1].values()) == [
        *("smol", "differences of CMA, ioi, smol", "eap", "less ifr", "0.1235", "-0.1", "0.3", "")
    ]
    first, second = page.read_text("utf-8").split("More words.\n")[:2]
    sentence = "> Run eap: it has the highest CMA. truth, ioi: EAP is best, on 40 pairs."
    assert first == f"Words.\n<!-- table: Which to run -->\n\n{sentence}\n\n<!-- end -->\n"
    assert "old" not in second
    assert second.endswith("| – | 40 |\n\n† the best of its column.\n\n<!-- end -->\n")
    page.write_text(before.format("CPR"), "utf-8")
    command = [sys.executable, TOOL, run, target, "--page", page]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "no table 'CPR'" in done.stderr
    assert page.read_text("utf-8") == before.format("CPR")


def test_another_target_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("kept", "utf-8")
    done = subprocess.run([sys.executable, TOOL, page, page], capture_output=True, text=True)
    assert done.returncode == 1 and "writes a .csv file" in done.stderr
    assert page.read_text("utf-8") == "kept"
