"""Make the tables of README.md: python -m studies.chance [smollm2-135m].

Rankings drawn at random are scored once each and kept in runs/chance (`pool`). Then runs are drawn
from a pool: m methods and k controls of each kind, all of them random rankings, and the share of
runs is counted in which the best method is called better than chance (`rate`). Noise of examples is
left out, which makes the good sentence easier to earn.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.special import stdtrit

import mechassay as ma
from mechassay.circuits.series import FaithfulnessMetric
from mechassay.stats.chance import DRAWS_PER_TRY, FEW_DRAWS, chance_limit
from mechassay.utils.files import write_text

TRUTHS = (
    "truth-ioi",
    "truth-ioi-trained",
    "truth-induction-trained",
    "truth-greater-than-trained",
    "truth-addition-trained",
)
SMOLLM2, TASK = "smollm2-135m", "ioi"
AREAS, KINDS = ("cpr", "cmd", "cma"), ("random", "random-paths")
N_TRUTH, N_SMOLLM2 = 400, 30
"""Rankings of each kind."""
TRIED = (1, 4, 16)
N_RUNS = 4000
FOLDER = Path("runs/chance")


def pool(name: str) -> dict[tuple[str, str], np.ndarray]:
    """Areas of random rankings, by kind and area; higher is better (of CMD its negative)."""
    file = FOLDER / f"{name}.json"
    if not file.is_file():
        n, n_pairs = (N_SMOLLM2, 30) if name == SMOLLM2 else (N_TRUTH, 100)
        model = ma.load_model(name)
        pairs = ma.load_task(TASK if name == SMOLLM2 else name).pairs("test", model, limit=n_pairs)
        controls = ma.circuits.run_controls(model, pairs, seeds=range(n))
        rule = FaithfulnessMetric(
            "strict",
            controls.fractions,
            model.graph.n_edges,
            controls.empty,
            controls.full,
            controls.ids,
            objective=controls.objective,
        )
        areas: dict[str, list[float]] = {f"{kind} {area}": [] for kind in KINDS for area in AREAS}
        for kind, drawn in zip(KINDS, (controls.random, controls.random_paths), strict=True):
            for kept, values in drawn.values():
                sweep = rule.sweep("value", kept, kept, values)
                for area in AREAS:
                    sign = -1.0 if area == "cmd" else 1.0
                    areas[f"{kind} {area}"].append(sign * getattr(sweep, area).value)
        write_text(file, json.dumps(areas))
    held = json.loads(file.read_text("utf-8"))
    return {(kind, area): np.array(held[f"{kind} {area}"]) for kind in KINDS for area in AREAS}


def usual_limit(draws: np.ndarray, *, n_tried: int = 1) -> float:
    """The same with k - 1 degrees of freedom and 5 % divided by the methods: too low."""
    k = len(draws)
    quantile = float(stdtrit(k - 1, 1 - 0.05 / n_tried))
    return float(draws.mean() + quantile * draws.std(ddof=1) * np.sqrt(1 + 1 / k))


def rate(
    areas: dict[tuple[str, str], np.ndarray],
    area: str,
    n_tried: int,
    k: int,
    limit: Callable[..., float],
    rng: np.random.Generator,
) -> float:
    """The share of runs that call the best of random rankings better than chance."""
    kinds = [areas[kind, area] for kind in KINDS]
    n, hits = len(kinds[0]), 0
    for _ in range(N_RUNS):
        # Methods and controls share no ranking: a ranking does not beat itself.
        orders = [rng.permutation(n) for _ in kinds]
        beaten = max(limit(x[o[:k]], n_tried=n_tried) for x, o in zip(kinds, orders, strict=True))
        rest = np.concatenate([x[o[k:]] for x, o in zip(kinds, orders, strict=True)])
        hits += bool(rng.choice(rest, n_tried).max() > beaten)
    return hits / N_RUNS


def table(names: tuple[str, ...]) -> str:
    """Rates of all cells, as Markdown; a cell is empty where the pool is too small for it."""
    rng = np.random.default_rng(0)
    heads = ("model", "area", "methods", "k = 5", "k = 20", "k = 20 m", "usual t, k = 5")
    lines = ["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
    for name in names:
        areas = pool(name)
        for area in AREAS:
            n = len(areas["random", area])
            for n_tried in TRIED:
                ks = (FEW_DRAWS, DRAWS_PER_TRY, DRAWS_PER_TRY * n_tried)
                rates = [
                    f"{rate(areas, area, n_tried, k, chance_limit, rng):.3f}" if k < n else ""
                    for k in ks
                ]
                rates.append(f"{rate(areas, area, n_tried, ks[0], usual_limit, rng):.3f}")
                lines.append(f"| {name} | {area.upper()} | {n_tried} | {' | '.join(rates)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    chosen = tuple(sys.argv[1:]) or (*TRUTHS, SMOLLM2)
    write_text(FOLDER / "rates.md", table(chosen))
    print((FOLDER / "rates.md").read_text())
