"""Does choosing edges by |1 - f| make better circuits? CMD and CMA on pairs that did not choose.

`python -m studies.variance.selection` writes selection.md and keeps what is done in runs/variance.
Scores are those of EAP-IG-inputs on train pairs; mixtures are chosen on validation pairs, and all
circuits are measured on test pairs. Differences are from the circuits by magnitude, paired over
test pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import mechassay as ma
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.series import FRACTIONS, FaithfulnessMetric, RankingCurve, step_weights
from mechassay.models.model import Model
from mechassay.models.sources import truth_names
from mechassay.stats.intervals import percentile_interval
from mechassay.utils.display import interval
from mechassay.utils.files import write_text
from studies.variance.__main__ import kept
from studies.which_metric.truths import load_known

SIZES = FRACTIONS[:-1]
N_PAIRS = 30
SAMPLES = (0, 1, 2)
NEGATIVE = tuple(f"{name}+neg" for name in truth_names())


def measured(model: Model, task: Any, seed: int) -> dict[str, Any]:
    """The objective of every test pair in the circuits of each way to choose, and their sizes."""
    train, validation, test = (
        model.batch(task.pairs(split, model, limit=N_PAIRS, seed=seed))
        for split in ("train", "validation", "test")
    )
    scores = ma.circuits.EAPIGInputs(steps=5).score(model, train)
    chosen = ma.circuits.faithful_circuits(model, scores, validation)
    ways = {
        "magnitude": [scores.top(size, by="magnitude") for size in SIZES],
        "value": [scores.top(size) for size in SIZES],
        **{
            f"{share:.0%} positive": [scores.mixture(size, share) for size in SIZES]
            for share in (0.25, 0.5, 0.75)
        },
        "chosen": list(chosen.series.circuits),
    }
    pruned = {way: [circuit.pruned() for circuit in own] for way, own in ways.items()}
    distinct = [
        *(Circuit.empty(model.graph), Circuit.full(model.graph)),
        *dict.fromkeys(circuit for own in pruned.values() for circuit in own),
    ]
    values = ma.circuits.evaluate(model, distinct, test)
    places = {circuit: place for place, circuit in enumerate(distinct)}
    return {
        "n_edges": model.graph.n_edges,
        "groups": list(test.groups),
        "empty": values[0].tolist(),
        "full": values[1].tolist(),
        "positive": [row["positive"] for row in chosen.rows],
        "ways": {
            way: {
                "edges": [len(circuit) for circuit in own],
                "values": values[[places[circuit] for circuit in own]].tolist(),
            }
            for way, own in pruned.items()
        },
    }


def negative(name: str, seed: int) -> dict[str, Any]:
    """A truth with a negative head; why it does not count, if it does not."""
    known = load_known(name)
    return {"dropped": known.dropped} if known.dropped else measured(known.model, known.task, seed)


def cells(result: dict[str, Any], way: str) -> str:
    """CMD and CMA of one way, or their differences from the circuits by magnitude."""
    empty, full = np.array(result["empty"]), np.array(result["full"])
    rule = FaithfulnessMetric(
        "strict", FRACTIONS, result["n_edges"], empty, full, result["groups"], 0
    )
    one, base = (_sweep(rule, result, name) for name in (way, "magnitude"))
    texts: list[str] = []
    for area in ("cmd", "cma"):
        own, estimate = _draws(rule, one, area), getattr(one, area)
        value, low, high = estimate.value, estimate.interval.low, estimate.interval.high
        if way != "magnitude":
            value -= getattr(base, area).value
            ends = percentile_interval(own - _draws(rule, base, area), n_groups=rule.n_groups)
            low, high = ends.low, ends.high
        texts.append(interval(value, low, high, least=3))
    return " | ".join(texts)


def _sweep(rule: FaithfulnessMetric, result: dict[str, Any], way: str) -> RankingCurve:
    own = result["ways"][way]
    values = np.vstack((own["values"], result["full"]))
    sizes = (*own["edges"], result["n_edges"])
    return rule.sweep("magnitude", sizes, sizes, values)


def _draws(rule: FaithfulnessMetric, curve: RankingCurve, area: str) -> np.ndarray:
    """Resamples of an area: of |1 - f| or of agreement, the empty circuit first."""
    weights = step_weights([size / rule.n_edges for size in curve.n_edges_kept], FRACTIONS[0])
    f, shares = curve.draws
    if area == "cmd":
        return np.abs(1 - f) @ weights[1:] + weights[0]
    return shares @ weights[1:]


def rows(name: str, results: Sequence[dict[str, Any]]) -> list[str]:
    """A row for each sample and way."""
    lines: list[str] = []
    for seed, result in zip(SAMPLES, results, strict=False):
        if "dropped" in result:
            return [f"| {name} | | dropped: {result['dropped']} | | | |"]
        for way in result["ways"]:
            shares = " ".join(f"{100 * x:.0f}" for x in result["positive"])
            chosen = shares if way == "chosen" else ""
            lines.append(f"| {name} | {seed} | {way} | {cells(result, way)} | {chosen} |")
    return lines


def main() -> None:
    """Make the table and write it."""
    lines = [
        f"EAP-IG-inputs (5 steps) on {N_PAIRS} train pairs; mixtures chosen on {N_PAIRS}"
        f" validation pairs; {N_PAIRS} test pairs. CMD (lower is better) and CMA (higher), then"
        " differences from the circuits by magnitude. SmolLM2-135M in bf16. Positive: the share"
        " of edges by value that was chosen at each of nine sizes, in %.",
        "",
        "| model | sample | edges by | CMD | CMA | positive |",
        "|---|---|---|---|---|---|",
    ]
    smol = [
        kept(
            f"selection/smollm2-135m-ioi-{seed}",
            lambda seed=seed: measured(
                ma.load_model("smollm2-135m", dtype="bfloat16"), ma.load_task("ioi"), seed
            ),
        )
        for seed in SAMPLES
    ]
    for name in NEGATIVE:
        one = kept(f"selection/{name}", lambda name=name: negative(name, 0))
        lines += rows(name, [one])
    lines += rows("smollm2-135m ioi", smol)
    write_text(Path(__file__).with_name("selection.md"), "\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
