"""Make tables.md: python -m studies.variance [coverage] [transfer].

*Coverage.* What a method reaches is the mean, over samples of 40 training pairs, of an area
measured on 120 test pairs. Each sample is measured on its own 40 of these, with 12 resamples, and
it is counted how often the interval over test pairs and that of the method (`interval_of_method`)
hold that mean. Where resamples have two peaks there is no interval; that is counted too.

*Transfer.* EAP-IG-inputs finds edges on some templates. Circuits take them by their mean score
(magnitude) or by how they hold over the pairs (`PartScores.ordered`), at equal sizes, and are
measured on other pairs of the same templates and on templates that were not seen. Differences from
the mean are paired over test pairs.

What is done is kept in runs/variance; a second call goes on.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import mechassay as ma
from mechassay.circuits.evaluation.faithfulness import faithfulness_curve, magnitude_sweep
from mechassay.circuits.methods.stability import (
    SELECTIONS,
    interval_of_method,
    score_in_parts,
    two_peaks,
)
from mechassay.circuits.series import FRACTIONS, agreement
from mechassay.models.model import Model
from mechassay.prompts.batch import Batch
from mechassay.stats.intervals import Interval, Resamples, percentile_interval
from mechassay.utils.display import SILENT, interval
from mechassay.utils.files import write_text
from studies.how_many.cross_agreement import by_tag

FOLDER = Path("runs/variance")
AREAS = ("cpr", "cmd", "cma")
TRUTHS = (
    "truth-ioi",
    "truth-ioi-trained",
    "truth-greater-than-trained",
)
METHODS: dict[str, Any] = {
    "eap": ma.circuits.EAP(),
    "eap-ig-inputs": ma.circuits.EAPIGInputs(steps=5),
}
N_SAMPLES, N_TRAIN, N_TEST, N_ALL, N_RESAMPLES = 24, 40, 40, 120, 12
MODELS, TASKS = (
    ("smollm2-135m", "gemma3-270m"),
    {"ioi": "template", "greater-than": "noun", "docstring": "name"},
)
N_FOUND_ON, N_MEASURED = 60, 30


def kept(name: str, make: Callable[[], Any]) -> Any:
    """What a file of the folder holds, made if it is not there."""
    file = FOLDER / f"{name}.json"
    if not file.is_file():
        begin = time.perf_counter()
        write_text(file, json.dumps(make()))
        print(f"{name}: {time.perf_counter() - begin:.0f} s", flush=True)
    return json.loads(file.read_text("utf-8"))


def measured(model: Model, scores: Any, batch: Batch, controls: Any) -> Any:
    """The curve of scores on some pairs."""
    return faithfulness_curve(model, scores, batch, controls=controls, progress=SILENT)


def sample(name: str, method: str, number: int) -> dict[str, Any]:
    """One sample of training and of test pairs: areas with intervals, resamples, and the areas of
    the same circuits on all test pairs.
    """
    model, task = ma.load_model(name), ma.load_task(name)
    rng = np.random.default_rng(number)
    train = model.batch(task.pairs("train", model, limit=300))
    test = model.batch(task.pairs("test", model, limit=N_ALL))
    found_on = train.select(sorted(rng.choice(len(train), N_TRAIN, replace=False).tolist()))
    measured_on = test.select(sorted(rng.choice(len(test), N_TEST, replace=False).tolist()))
    in_parts = score_in_parts(METHODS[method], model, found_on, progress=SILENT)
    few = ma.circuits.run_controls(model, measured_on, seeds=range(1), progress=SILENT)
    every = ma.circuits.run_controls(model, test, seeds=range(1), progress=SILENT)
    own = measured(model, in_parts.scores, measured_on, few)
    draws = [
        measured(model, in_parts.resample(place), measured_on, few) for place in range(N_RESAMPLES)
    ]
    whole = measured(model, in_parts.scores, test, every)
    return {
        area: {
            "value": float(getattr(own, area)),
            "ends": list(getattr(own, f"{area}_interval")[:2]),
            "draws": [float(getattr(draw, area)) for draw in draws],
            "whole": float(getattr(whole, area)),
        }
        for area in AREAS
    }


def coverage_rows() -> list[str]:
    """A row for each truth, method and area."""
    rows: list[str] = []
    for name in TRUTHS:
        for method in METHODS:
            samples = [
                kept(
                    f"coverage/{name}-{method}-{number}",
                    lambda number=number, name=name, method=method: sample(name, method, number),
                )
                for number in range(N_SAMPLES)
            ]
            for area in AREAS:
                cells = [of[area] for of in samples]
                rows.append(f"| `{name}` | {method} | {area.upper()} | {_coverage(cells)} |")
    return rows


def _coverage(cells: list[dict[str, Any]]) -> str:
    """Mean, standard deviation, and how often each interval holds the mean over samples."""
    target = float(np.mean([cell["whole"] for cell in cells]))
    spread = float(np.std([cell["whole"] for cell in cells], ddof=1))
    held, held_by_method, widths, n_peaks, n_defined = 0, 0, list[float](), 0, 0
    for cell in cells:
        low, high = cell["ends"]
        held += low <= target <= high
        draws = np.array(cell["draws"])
        n_peaks += two_peaks(draws, high - low)
        around = interval_of_method(Interval(low, high), draws)
        if not math.isnan(around.high):
            n_defined += 1
            held_by_method += abs(cell["value"] - target) <= around.high
            widths.append(2 * around.high / (high - low) if high > low else math.nan)
    wider = f"{np.nanmedian(widths):.1f}" if widths else "–"
    by_method = f"{held_by_method / n_defined:.2f}" if n_defined else "–"
    return (
        f"{target:.3f} | {spread:.3f} | {held / len(cells):.2f} | {by_method} | {wider} |"
        f" {n_defined} of {len(cells)} | {n_peaks}"
    )


def transfer(name: str, task_name: str, tag: str) -> dict[str, Any]:
    """Agreement of pairs in circuits of all sizes, by selection, on seen and unseen templates."""
    model, task = ma.load_model(name, dtype="bfloat16"), ma.load_task(task_name)
    # Of one split: the test split of IOI has templates of its own.
    pairs_by_tag = by_tag(task.pairs("train", model, limit=400), tag)
    names = sorted(pairs_by_tag)
    np.random.default_rng(0).shuffle(names)
    seen, unseen = (
        [pair for name in half for pair in pairs_by_tag[name]]
        for half in (names[: len(names) // 2], names[len(names) // 2 :])
    )
    order = np.random.default_rng(1).permutation(len(seen))[: N_FOUND_ON + N_MEASURED].tolist()
    chosen = [seen[place] for place in order[:N_FOUND_ON]]
    others = np.random.default_rng(2).permutation(len(unseen))[:N_MEASURED].tolist()
    in_parts = score_in_parts(METHODS["eap-ig-inputs"], model, chosen)
    sets = {
        "seen": [seen[place] for place in order[N_FOUND_ON:]],
        "unseen": [unseen[place] for place in others],
    }
    values: dict[str, Any] = {"templates": len(names)}
    for where, pairs in sets.items():
        batch = model.batch(pairs)
        full = ma.circuits.Circuit.full(model.graph)
        empty = ma.circuits.Circuit.empty(model.graph)
        ends = ma.circuits.evaluate(model, [full, empty], batch)
        values[where] = {"full": ends[0].tolist(), "empty": ends[1].tolist()}
        for selection in ("mean", *SELECTIONS):
            scores = in_parts.scores if selection == "mean" else in_parts.ordered(selection)
            sweep = magnitude_sweep(model, scores, batch)
            values[where][selection] = sweep.per_example.tolist()
    return values


def transfer_rows() -> list[str]:
    """A row for each model, task and selection."""
    rows: list[str] = []
    for name in MODELS:
        for task, tag in TASKS.items():
            values = kept(
                f"transfer/{name}-{task}",
                lambda name=name, task=task, tag=tag: transfer(name, task, tag),
            )
            for selection in ("mean", *SELECTIONS):
                cells = [_agreements(values[where], selection) for where in ("seen", "unseen")]
                rows.append(f"| {name} | {task} | {selection} | {' | '.join(cells)} |")
    return rows


def _agreements(values: dict[str, Any], selection: str) -> str:
    """Agreement at three sizes, and the difference of its mean over sizes from that of the mean."""
    full, empty = np.array(values["full"]), np.array(values["empty"])
    of = {
        kind: np.array(values[kind])[:-1] for kind in ("mean", selection)
    }  # The full circuit is the same for all.
    shares = agreement(full=full, empty=empty, circuit=of[selection])
    places = [FRACTIONS.index(size) for size in (0.01, 0.05, 0.2)]
    texts = " ".join(f"{shares[place]:.2f}" for place in places)
    if selection == "mean":
        return f"{texts} | {shares.mean():.3f}"
    groups = tuple(map(str, range(len(full))))
    effect = np.abs(full - empty)
    lost = [
        np.maximum(0.0, effect - np.abs(of[kind] - full)).mean(axis=0)
        for kind in (selection, "mean")
    ]
    draws = Resamples(groups, np.random.default_rng(0)).means(np.stack([lost[0] - lost[1], effect]))
    difference = float((lost[0] - lost[1]).mean() / effect.mean())
    low, high, _ = percentile_interval(draws[:, 0] / draws[:, 1], n_groups=len(groups))
    return f"{texts} | {interval(difference, low, high, least=3)}"


def main() -> None:
    """Make the tables that are asked for, all of them by default, and write them."""
    asked = sys.argv[1:] or ["coverage", "transfer"]
    parts: list[str] = []
    if "coverage" in asked:
        parts += [
            "## Coverage",
            "",
            f"{N_SAMPLES} samples of {N_TRAIN} training and {N_TEST} test pairs a row,"
            f" {N_RESAMPLES} resamples each. SD: of the area over training samples.",
            "",
            "| model | method | area | mean | SD | covered by the interval over test pairs |"
            " by that of the method | times as wide | with an interval | two peaks |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *coverage_rows(),
            "",
        ]
    if "transfer" in asked:
        parts += [
            "## Transfer",
            "",
            f"EAP-IG-inputs on {N_FOUND_ON} pairs, {N_MEASURED} test pairs of seen and as many of"
            " unseen templates (of greater-than nouns, of docstring names of functions)."
            " Agreement at 1, 5 and 20 % of the edges;"
            " then its mean over nine sizes, or the difference of that from the first row.",
            "",
            "| model | task | edges by | seen: 1 5 20 % | all sizes | unseen: 1 5 20 % |"
            " all sizes |",
            "|---|---|---|---|---|---|---|",
            *transfer_rows(),
            "",
        ]
    write_text(Path(__file__).parent / "tables.md", "\n".join(parts))
    print("\n".join(parts))


if __name__ == "__main__":
    main()
