"""Does choosing edges by |1 - f| make better circuits? CMD and CMA on pairs that did not choose.

`python -m studies.variance.selection` writes selection.md and keeps what is done in runs/variance.
Scores are those of EAP-IG-inputs on train pairs; mixtures are chosen on validation pairs, and all
circuits are measured on test pairs. Differences are from the circuits by magnitude, paired over
test pairs.
"""

from __future__ import annotations

from collections.abc import Callable
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
from studies.variance.__main__ import FOLDER, kept
from studies.which_metric.truths import load_known

SIZES = FRACTIONS[:-1]
N_PAIRS = 30
SMOL = "smollm2-135m ioi"
NEGATIVE = tuple(f"{name}+neg" for name in truth_names())


def measured(model: Model, task: Any, name: str) -> dict[str, Any]:
    """The objective of every test pair in the circuits of each way to choose, and their sizes.

    Args:
        name: of the folder that keeps what is done.
    """
    train, validation, test = (
        model.batch(task.pairs(split, model, limit=N_PAIRS))
        for split in ("train", "validation", "test")
    )
    file = FOLDER / "selection" / name / "scores.safetensors"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        ma.circuits.EAPIGInputs(steps=5).score(model, train).save(file)
    scores = ma.circuits.EdgeScores.load(file, model.graph)

    def in_folder(part: str, make: Callable[[], Any]) -> Any:
        return kept(f"selection/{name}/{part}", make)

    chosen = ma.circuits.faithful_circuits(model, scores, validation, kept=in_folder)
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
    pruned["ends"] = [Circuit.empty(model.graph), Circuit.full(model.graph)]
    values: dict[Circuit, list[float]] = {}
    for way, own in pruned.items():
        new = [circuit for circuit in dict.fromkeys(own) if circuit not in values]
        if new:
            rows_of = in_folder(
                f"test {way}", lambda new=new: ma.circuits.evaluate(model, new, test).tolist()
            )
            values |= dict(zip(new, rows_of, strict=True))
    empty, full = (values[circuit] for circuit in pruned.pop("ends"))
    return {
        "n_edges": model.graph.n_edges,
        "groups": list(test.groups),
        "empty": empty,
        "full": full,
        "positive": [row["positive"] for row in chosen.rows],
        "ways": {
            way: {
                "edges": [len(circuit) for circuit in own],
                "values": [values[circuit] for circuit in own],
            }
            for way, own in pruned.items()
        },
    }


def negative(name: str) -> dict[str, Any]:
    """A truth with a negative head; why it does not count, if it does not."""
    known = load_known(name)
    if known.dropped:
        return {"dropped": known.dropped}
    return measured(known.model, known.task, name)


def smollm() -> dict[str, Any]:
    """SmolLM2-135M on IOI."""
    model = ma.load_model("smollm2-135m", dtype="bfloat16")
    return measured(model, ma.load_task("ioi"), SMOL)


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


def rows(name: str, result: dict[str, Any]) -> list[str]:
    """A row for each way."""
    if "dropped" in result:
        return [f"| {name} | dropped: {result['dropped']} | | | |"]
    shares = " ".join(f"{100 * x:.0f}" for x in result["positive"])
    return [
        f"| {name} | {way} | {cells(result, way)} | {shares if way == 'chosen' else ''} |"
        for way in result["ways"]
    ]


def write(lines: list[str]) -> None:
    """The rows as selection.md."""
    head = [
        f"EAP-IG-inputs (5 steps) on {N_PAIRS} train pairs; mixtures chosen on {N_PAIRS}"
        f" validation pairs; {N_PAIRS} test pairs. CMD (lower is better) and CMA (higher), then"
        " differences from the circuits by magnitude. SmolLM2-135M in bf16. Positive: the share"
        " of edges by value that was chosen at each of nine sizes, in %.",
        "",
        "| model | edges by | CMD | CMA | positive |",
        "|---|---|---|---|---|",
    ]
    write_text(Path(__file__).with_name("selection.md"), "\n".join([*head, *lines, ""]))


def main() -> None:
    """Make the rows of truths and write them, then those of SmolLM2-135M too."""
    lines: list[str] = []
    for name in NEGATIVE:
        lines += rows(name, kept(f"selection/{name}", lambda name=name: negative(name)))
    write(lines)
    write([*lines, *rows(SMOL, kept(f"selection/{SMOL}", smollm))])


if __name__ == "__main__":
    main()
