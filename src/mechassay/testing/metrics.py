"""What every metric of scores has to satisfy; authors of metrics may run it on their own.

from mechassay.testing import check_metric

check_metric(MyMetric())
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch

from mechassay.circuits.ablation import ablate
from mechassay.circuits.methods.random import Random
from mechassay.circuits.metrics import Measured, Metric, Scored
from mechassay.circuits.scores import EdgeScores
from mechassay.objectives import load_objective
from mechassay.progress import SILENT
from mechassay.records import Record, Spec, provenance
from mechassay.testing.records import check_record
from mechassay.truth.models import load_truth


def check_metric(metric: Metric, truth: str = "truth-previous-token") -> None:
    """Raise AssertionError at the first promise that the metric breaks.

    It is tried on the scores that say exactly which edges are in a known circuit, on random ones,
    on scores that are all equal, and where no circuit is known.
    """
    params: Any = getattr(type(metric), "__dataclass_params__", None)
    assert params is not None and params.frozen, "metrics are values: frozen dataclasses"
    assert metric.name and metric.version >= 1
    known = load_truth(truth)
    circuit, graph = known.circuits["zero"], known.circuits["zero"].graph
    pairs = known.task.pairs("test", known.model, limit=6)
    batch = ablate(known.model, known.model.batch(pairs), "zero")
    every = {
        "exact scores": EdgeScores.of(graph, circuit.edges.float()),
        "random scores": Random(seed=1).draw(graph),
        "equal scores": EdgeScores.of(graph, graph.legal.float()),
    }
    for name, scores in every.items():
        before = scores.values.clone()
        scored = Scored(
            known.model, scores, batch, load_objective("logit_diff"), circuit, progress=SILENT
        )
        result = metric.measure(scored)
        check_measures(result, name)
        assert repr(metric.measure(scored)) == repr(result), f"{name}: two calls differ"
        assert torch.equal(before.nan_to_num(9), scores.values.nan_to_num(9)), "scores were changed"
        if metric.needs_truth:
            unknown = metric.measure(dataclasses.replace(scored, truth=None))
            assert unknown.measures, "without a truth its measures are undefined, not missing"
            assert all(math.isnan(measure.value) for measure in unknown.measures)


def check_measures(result: Measured, name: str) -> None:
    """Measures that say what they are, each beside a control, all of them on the page."""
    assert result.measures, f"{name}: no measures"
    own = [measure for measure in result.measures if measure.of == "result"]
    controls = {measure.name for measure in result.measures if measure.of.startswith("control:")}
    assert len({measure.name for measure in own}) == len(own), f"{name}: measures share a name"
    for measure in own:
        assert measure.title and measure.meaning, f"{measure.name} has no title, or no meaning"
        assert measure.name in controls, f"{measure.name} stands beside no control"
        if math.isnan(measure.value):
            assert result.warnings or measure.n_undefined, f"{measure.name}: undefined, and no why"
        elif not math.isnan(measure.low):
            assert measure.low <= measure.value <= measure.high, f"{measure.name}: {measure}"
    specs = {role: Spec(name=role) for role in ("model", "task", "method", "metric")}
    about = provenance(device="cpu", dtype="float32", seed=0)
    check_record(
        Record(
            kind="metric",
            specs=specs,
            measures=list(result.measures),
            tables=list(result.tables),
            warnings=list(result.warnings),
            provenance=about,
        )
    )
