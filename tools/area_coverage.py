"""How often intervals of CPR and CMD hold the truth, and equal methods are called different.

    PYTHONPATH=src python tools/area_coverage.py runs/area-coverage.jsonl 500

The file keeps a line of JSON for each finished row, so that a call that was stopped goes on. The
last call prints the tables of docs/areas.md. 500 evaluations a row take 15 minutes of one core.

Examples have a clean logit difference of 3 and an ablated one of -1, each with a standard deviation
of 1. A circuit's value is that of its f, with noise of its own and noise that all sizes share.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mechassay.circuits.evaluation.differences import AreaName, simultaneous
from mechassay.circuits.series import FRACTIONS, FaithfulnessMetric, RankingCurve, step_weights
from mechassay.stats.intervals import BootstrapEstimate

N_EDGES = 10_000
KEPT = tuple(int(N_EDGES * p) for p in FRACTIONS)
WEIGHTS = step_weights([kept / N_EDGES for kept in KEPT], FRACTIONS[0])
SHAPES: dict[str, list[float]] = {
    "perfect": [1.0] * 10,
    "near perfect": [0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0, 1.0],
    "rising": [0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 0.9, 0.97, 1.0, 1.0],
    "overshooting": [0.0, 0.1, 0.3, 0.6, 1.2, 1.8, 2.2, 2.4, 1.6, 1.0],
    "random-like": [0.0] * 9 + [1.0],
    "alternating": [0.9, 1.1, 0.9, 1.1, 0.9, 1.1, 0.9, 1.1, 0.9, 1.0],
    "alternating, groups of 4": [0.9, 1.1, 0.9, 1.1, 0.9, 1.1, 0.95, 1.05, 0.98, 1.0],
    "jump, heavy tails": [0.0, 0.0, 0.0, 0.0, 0.02, 1.05, 1.05, 1.03, 1.01, 1.0],
    "rising, skewed": [0.0, 0.1, 0.3, 0.6, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0],
}
"""f of a method's circuits at each size."""
OF_ONE_NOISE = ("alternating, groups of 4", "jump, heavy tails", "rising, skewed")


def areas(f: Sequence[float]) -> tuple[float, float]:
    """CPR and CMD of circuits with this faithfulness."""
    values = np.array([0.0, *f])
    return float(WEIGHTS @ values), float(WEIGHTS @ np.abs(1 - values))


def evaluation(rng: np.random.Generator, shape: str, n: int, noise: float) -> RankingCurve:
    """One evaluation of a method whose circuits have the faithfulness of a shape."""
    f, groups = np.array(SHAPES[shape])[:, None], np.arange(n)
    full, empty = 3 + rng.normal(size=n), -1 + rng.normal(size=n)
    off = noise * 0.7 * (rng.normal(size=(10, n)) + rng.normal(size=n))
    if shape == "jump, heavy tails":
        full, off = 3 + 0.8 * rng.standard_t(4, n), 0.6 * rng.standard_t(4, (10, n))
    elif shape == "rising, skewed":
        # A few examples carry most of the difference.
        full, empty = np.exp(rng.normal(size=n)), -0.2 + 0.2 * rng.normal(size=n)
        off = 0.4 * rng.normal(size=(10, n))
    elif shape == "alternating, groups of 4":
        groups //= 4
        full = 3 + rng.normal(size=n)[groups] + 0.5 * rng.normal(size=n)
        empty = -1 + 0.5 * rng.normal(size=n)
        off = 0.5 * (rng.normal(size=(10, n))[:, groups] + rng.normal(size=(10, n)))
    off[-1] = 0.0
    names = tuple(map(str, groups))
    rule = FaithfulnessMetric(
        "strict", FRACTIONS, N_EDGES, empty, full, names, int(rng.integers(2**32))
    )
    return rule.sweep("value", KEPT, KEPT, empty + f * (full - empty) + off)


def coverage(shape: str, n: int, noise: float, runs: int, seed: int = 0) -> dict[str, float]:
    """Shares of evaluations whose intervals hold the truth, and the bias of CMD.

    Where f is undefined, the evaluation does not count.
    """
    rng, (cpr, cmd) = np.random.default_rng(seed), areas(SHAPES[shape])
    sweeps = [evaluation(rng, shape, n, noise) for _ in range(runs)]
    sweeps = [sweep for sweep in sweeps if not np.isnan(sweep.cmd.value)]
    ends = np.array([sweep.cmd.interval[:2] for sweep in sweeps])
    # CMD is at least 0, and rounding may put the lower end of a perfect circuit's above it.
    low, high = ends[:, 0] - 1e-12, ends[:, 1]
    return {
        "CMD": cmd,
        "bias": float(np.mean([sweep.cmd.value for sweep in sweeps])) - cmd,
        "width": float(np.mean(high - low)),
        "CMD covered": float(np.mean((low <= cmd) & (cmd <= high))),
        "CPR covered": float(np.mean([sweep.cpr.interval.contains(cpr) for sweep in sweeps])),
        "undefined": runs - len(sweeps),
    }


def of_cmd(f: Sequence[float], cmd: float) -> list[float]:
    """Circuits with this CMD: those with f in the smallest five sizes raised or lowered."""
    small = np.array([1.0] * 5 + [0.0] * 5)
    rest = areas(np.where(small == 1, 1.0, f).tolist())[1]
    least = (cmd - rest) / float(WEIGHTS[1:] @ small)
    return np.where(small == 1, 1 - least, f).tolist()


EVEN = [0.95, 1.05, 0.95, 1.05, 0.95, 1.05, 0.95, 1.05, 0.95, 1.0]
RIVALS: dict[str, list[list[float]]] = {
    "perfect": [SHAPES["perfect"]] * 6,
    "rising": [SHAPES["rising"]] * 6,
    "jump": [SHAPES["jump, heavy tails"]] * 6,
    "alternating": [SHAPES["alternating"]] * 6,
    "random-like": [SHAPES["random-like"]] * 6,
    "evenly off, or in small circuits only": [
        *[EVEN] * 3,
        *[of_cmd(SHAPES["perfect"], areas(EVEN)[1])] * 3,
    ],
}
"""Six methods of equal CMD; of equal CPR too, but for the last."""


def family_wise_errors(
    methods: Sequence[Sequence[float]], n: int, runs: int, seed: int = 0
) -> dict[str, float]:
    """How often any of 15 differences of CMD is called resolved; without bounds of the bias too."""
    rng = np.random.default_rng(seed)
    wrong: dict[str, int] = dict.fromkeys(("CMD", "without bounds", "CPR"), 0)
    for _ in range(runs):
        hard = rng.normal(size=n)
        empty, full = -1 + hard, 3 + hard + rng.normal(size=n)
        rule = FaithfulnessMetric(
            "strict", FRACTIONS, N_EDGES, empty, full, tuple(map(str, range(n)))
        )
        sweeps: list[RankingCurve] = []
        for f in methods:
            off = 0.5 * rng.normal(size=(10, n))
            off[-1] = 0.0
            values = empty + np.array(f)[:, None] * (full - empty) + off
            sweeps.append(rule.sweep("value", KEPT, KEPT, values))
        folded = [sweep.cmd for sweep in sweeps]
        unbounded = [BootstrapEstimate(each.value, each.errors, each.n_groups) for each in folded]
        estimates: dict[str, tuple[AreaName, Sequence[BootstrapEstimate]]] = {
            "CMD": ("cmd", folded),
            "without bounds": ("cmd", unbounded),
            "CPR": ("cpr", [sweep.cpr for sweep in sweeps]),
        }
        names = tuple(map(str, range(len(methods))))
        for key, (area, made) in estimates.items():
            wrong[key] += simultaneous(area, names, made).n_resolved > 0
    return {key: count / runs for key, count in wrong.items()}


def row(place: int, key: Sequence[Any], runs: int) -> dict[str, float]:
    """One row of a table: its key is a shape, n and noise, or six methods' name and n."""
    if len(key) == 3:
        return coverage(key[0], key[1], key[2], runs, place)
    return family_wise_errors(RIVALS[key[0]], key[1], runs, place)


def tables(rows: Sequence[tuple[Sequence[Any], Mapping[str, float]]]) -> str:
    """Both tables as Markdown."""
    lines = [
        "| shape | n | noise | CMD | bias of CMD | mean width | CMD covered | CPR covered |",
        "|---" * 8 + "|",
    ]
    for key, of in [(key, of) for key, of in rows if len(key) == 3]:
        shares = f"{of['CMD covered']:.1%} | {of['CPR covered']:.1%}".replace("%", " %")
        lines.append(
            f"| {key[0]} | {key[1]} | {key[2]} | {of['CMD']:.3f} | {of['bias']:+.3f} |"
            f" {of['width']:.3f} | {shares} |"
        )
    undefined = sum(of["undefined"] for key, of in rows if len(key) == 3)
    lines += ["", f"{undefined:g} evaluations were undefined.", ""]
    lines += ["| six methods | n | CMD | CMD without bounds | CPR |", "|---" * 5 + "|"]
    for key, of in [(key, of) for key, of in rows if len(key) == 2]:
        # Methods of other CPR are rightly told apart by it.
        cpr = f"{of['CPR']:.1%}" if len({areas(f)[0] for f in RIVALS[key[0]]}) == 1 else "differs"
        shares = f"{of['CMD']:.1%} | {of['without bounds']:.1%} | {cpr}".replace("%", " %")
        lines.append(f"| {key[0]} | {key[1]} | {shares} |")
    return "\n".join(lines)


def main(file: Path, runs: int) -> None:
    """Make the rows that the file lacks, and print the tables."""
    keys: list[tuple[Any, ...]] = [
        (shape, n, noise)
        for shape in SHAPES
        for n in (20, 40, 100)
        for noise in ((1.0,) if shape in OF_ONE_NOISE else (0.3, 1.0))
    ]
    keys += [(name, n) for name in RIVALS for n in (30, 100)]
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    made = {(*key, n_runs): of for key, n_runs, of in map(json.loads, lines)}
    for place, key in enumerate(keys):
        if (*key, runs) not in made:
            made[*key, runs] = row(place, key, runs)
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps([key, runs, made[*key, runs]]) + "\n")
    print(tables([(key, made[*key, runs]) for key in keys]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
