"""Which faults do the tests find? Small ones are put into the code one at a time, by a fixed seed.

    python tools/mutants.py mutants.json            60 faults, the default tests of each
    python tools/mutants.py mutants.json --all      those that survive, the slow tests too

A fault is one change of the syntax tree in circuits, interventions, stats or variables:

    comparison    < for <=, > for >=, == for !=, and the other way round
    arithmetic    + for -, * for /, and the other way round
    number        n + 1 for a whole number n
    logic         `and` for `or`, a condition for its opposite

Each runs, in a copy of the repository, against the tests of its own room and of known, invariance
and agreement, up to the first failure. A fault whose tests fail is found, and so is one under which
they take ten times as long. What the default tests find, those with the slow ones find: they are
among them. What is done is in the file: the same command goes on.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mechassay.stats.intervals import clopper_pearson
from mechassay.utils.display import interval

ROOT = Path(__file__).parents[1]
ROOMS = ("circuits", "interventions", "stats", "variables")
ALWAYS = ("known", "invariance", "agreement")
N, SEED = 60, 0
SWAPS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def places_of(tree: ast.Module) -> list[tuple[int, str]]:
    """Every place of a file where a fault can be: the number of the node, and the kind."""
    places: list[tuple[int, str]] = []
    for number, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            places.append((number, "comparison"))
        elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
            places.append((number, "arithmetic"))
        elif isinstance(node, ast.BoolOp):
            places.append((number, "logic"))
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            places.append((number, "number"))
        elif isinstance(node, ast.If | ast.IfExp) and "TYPE_CHECKING" not in ast.dump(node.test):
            places.append((number, "condition"))
    return places


def with_fault(source: str, number: int) -> tuple[int, str]:
    """The line of a node, and the source with a fault there."""
    tree = ast.parse(source)
    node = [*ast.walk(tree)][number]
    if isinstance(node, ast.Compare):
        node.ops[0] = SWAPS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp | ast.BoolOp):
        node.op = SWAPS[type(node.op)]()
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        node.value += 1
    elif isinstance(node, ast.If | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    return getattr(node, "lineno", 0), ast.unparse(ast.fix_missing_locations(tree))


def drawn() -> list[tuple[Path, int, str, str]]:
    """The faults of the fixed seed: file, line, kind and the changed source."""
    generator = random.Random(SEED)
    package = ROOT / "src" / "mechassay"
    files = sorted(file for room in ROOMS for file in (package / room).rglob("*.py"))
    weights = [len(file.read_text("utf-8").splitlines()) for file in files]
    faults: dict[tuple[Path, int, str], str] = {}
    while len(faults) < N:
        [file] = generator.choices(files, weights)
        source = file.read_text("utf-8")
        if places := places_of(ast.parse(source)):
            number, kind = generator.choice(places)
            line, text = with_fault(source, number)
            faults.setdefault((file, line, kind), text)
    return [(*place, text) for place, text in faults.items()]


def outcome(folder: Path, room: str, more: list[str], seconds: float) -> tuple[str, float]:
    """Whether the tests of a room fail in a copy of the repository, and how long they took."""
    tests = [f"tests/{name}" for name in (*ALWAYS, room)]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *more, *tests]
    begin = time.monotonic()
    try:
        code = subprocess.run(command, cwd=folder, capture_output=True, timeout=seconds).returncode
    except subprocess.TimeoutExpired:
        return "found (time)", time.monotonic() - begin
    if code not in (0, 1, 2):
        raise SystemExit(f"pytest ended with {code}: {' '.join(command)}")
    return ("survived" if code == 0 else "found"), time.monotonic() - begin


def left_out(folder: str, names: list[str]) -> list[str]:
    """What of a folder is not copied: at the top the results of runs, too."""
    here = ("runs", "site", ".git") if Path(folder) == ROOT else ()
    return [x for x in names if x in here or x.startswith(".venv") or x == "__pycache__"]


def main() -> None:
    """Run the faults that the file does not have yet, and print the share that is found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--all", action="store_true", help="the slow tests too")
    chosen = parser.parse_args()
    selection = "all" if chosen.all else "default"
    more = ["--all"] if chosen.all else []
    done = json.loads(chosen.file.read_text("utf-8")) if chosen.file.is_file() else {}
    with tempfile.TemporaryDirectory() as scratch:
        copied = Path(scratch) / "copy"
        shutil.copytree(ROOT, copied, ignore=left_out)
        for file, line, kind, text in drawn():
            place, room = file.relative_to(ROOT), file.relative_to(ROOT).parts[2]
            name = f"{place}:{line} {kind}"
            if chosen.all and (how := done.get(name, {}).get("default", "survived")) != "survived":
                done[name][selection] = how
            if selection in done.get(name, {}):
                continue
            if f"clean {room} {selection}" not in done:
                how, took = outcome(copied, room, more, 3600)
                if how != "survived":
                    raise SystemExit(f"the tests of {room} fail without a fault")
                done[f"clean {room} {selection}"] = round(took, 1)
            (copied / place).write_text(text, "utf-8")
            seconds = 10 * done[f"clean {room} {selection}"]
            how, took = outcome(copied, room, more, seconds)
            shutil.copyfile(file, copied / place)
            done.setdefault(name, {})[selection] = how
            chosen.file.write_text(json.dumps(done, indent=1), "utf-8")
            print(f"{how}: {name} ({took:.0f} s)", flush=True)
    results = [
        about[selection]
        for about in done.values()
        if isinstance(about, dict) and selection in about
    ]
    found = sum(how != "survived" for how in results)
    ends = clopper_pearson(found, len(results))
    share = interval(found / len(results), ends.low, ends.high)
    print(f"{share} of {len(results)} faults are found ({selection})")


if __name__ == "__main__":
    main()
