"""Writes the tables of all numbers of records into docs/records.md: python tools/records.py.

The tables are made of the data files that give numbers their words: `results/data/measures.yaml`
and `measurement/data/metrics/*.yaml`. They stand between `<!-- numbers -->` and `<!-- end -->`.
With `--check` nothing is written, and the tool fails if the page is not up to date.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from mechassay.measurement.catalogue import catalogue
from mechassay.results.measures import all_measure_texts

PAGE = Path(__file__).parents[1] / "docs" / "records.md"
PLACE = re.compile(r"(?<=<!-- numbers -->\n).*?(?=<!-- end -->)", re.DOTALL)


def table(head: Sequence[str], rows: Iterator[tuple[str, ...]]) -> list[str]:
    """Return a Markdown table."""
    cells = ([text.replace("|", "\\|") for text in line] for line in rows)
    return [f"| {' | '.join(line)} |" for line in (head, ("---",) * len(head), *cells)]


def of_kinds() -> Iterator[tuple[str, ...]]:
    """Yield a row for each number of each kind of run."""
    for kind, texts in all_measure_texts().items():
        for name, text in texts.by_name.items():
            title = text.title if "{" not in text.title else ""
            about = f"*{title}.* {text.meaning}" if title and title != name else text.meaning
            yield kind, f"`{text.name or name}`", text.better, text.unit, about.strip()


def of_metrics() -> Iterator[tuple[str, ...]]:
    """Yield a row for each repaired quantity of each metric of measurement."""
    for metric in catalogue().values():
        for name, text in metric.texts["repaired"].items():
            yield metric.id, f"`{name}`", text.better, text.meaning


def section() -> str:
    """Return the tables in Markdown."""
    kinds = table(("kind", "number", "better", "unit", "meaning"), of_kinds())
    metrics = table(("metric", "quantity", "better", "meaning"), of_metrics())
    about = "Numbers of `mechassay measure`, by the repaired definition of each metric:"
    return "\n".join(["", *kinds, "", about, "", *metrics, "", ""])


def main() -> None:
    """Write the tables, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if the page is not up to date")
    args = parser.parse_args()
    text = PAGE.read_text("utf-8")
    new = PLACE.sub(lambda _: section(), text)
    if args.check and new != text:
        sys.exit("docs/records.md is not up to date: run `python tools/records.py`.")
    PAGE.write_text(new, "utf-8")


if __name__ == "__main__":
    main()
