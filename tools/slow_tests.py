"""Write tests/slow.txt, the tests that only `make test-all` runs, from a measured run of all tests:
make test-all MORE="--all --junitxml=times.xml"; python tools/slow_tests.py times.xml 2.

A test is slow if it and what it sets up take more seconds than the limit. Of a test with many
parameters, the quickest case stays in the default run, unless it takes more than twice the limit.
Tests that carry the mark `slow` in their file are not listed.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

LISTED = Path(__file__).parents[1] / "tests" / "slow.txt"


def seconds_of(report: Path) -> dict[str, float]:
    """Seconds of each test that was run, by its node id."""
    found: dict[str, float] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        if case.find("skipped") is None:
            path = case.get("classname", "").replace(".", "/") + ".py"
            found[f"{path}::{case.get('name')}"] = float(case.get("time", 0))
    return found


def slow(seconds: dict[str, float], limit: float) -> list[str]:
    """The tests that only `--all` runs."""
    families: dict[str, list[str]] = defaultdict(list)
    for name in seconds:
        families[name.split("[")[0]].append(name)
    found: list[str] = []
    for names in families.values():
        quickest, *others = sorted(names, key=seconds.__getitem__)
        found += [name for name in others if seconds[name] > limit]
        # One alone is no case of many.
        if seconds[quickest] > (2 * limit if others else limit):
            found.append(quickest)
    return sorted(found)


if __name__ == "__main__":
    held = slow(seconds_of(Path(sys.argv[1])), float(sys.argv[2]))
    LISTED.write_text("".join(f"{name}\n" for name in held), "utf-8")
    print(f"{len(held)} tests in {LISTED}")
