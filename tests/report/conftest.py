"""Records, scores and a curve to report on, made without a model."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from mechassay.circuits.areas import Rule
from mechassay.circuits.faithfulness import Controls, FaithfulnessCurve
from mechassay.circuits.scores import Circuit, EdgeScores
from mechassay.graph import Graph
from mechassay.records import Measure, Provenance, Record, Spec
from mechassay.report.canvas import Drawing

FRACTIONS = [0.01, 0.1, 0.2, 1.0]
N_EDGES = 1000
NAN = float("nan")
SVG = "{http://www.w3.org/2000/svg}"


def line(
    f: list[float | None], half: float = 0.05, kept: list[int] | None = None
) -> dict[str, Any]:
    return {
        "asked": [10, 100, 200, 1000],
        "kept": kept or [8, 90, 200, 1000],
        "metric": [0.0] * 4,
        "faithfulness": f,
        "low": [None if value is None else value - half for value in f],
        "high": [None if value is None else value + half for value in f],
    }


@pytest.fixture
def make_record() -> Callable[..., Record]:
    """A maker of records whose CPR, f and labels can be chosen;
    by default far better than random.
    """

    def make(
        method: str = "eap",
        *,
        cpr: tuple[float, float, float] = (0.9, 0.8, 1.0),
        f: list[float | None] | None = None,
        kept: list[int] | None = None,
        ids: list[str] | None = None,
        model: str = "tiny-model",
        profile: str = "strict",
        denominator: tuple[float, float] = (1.0, 2.0),
        seeds: int = 3,
        **changes: Any,
    ) -> Record:
        names = ids or [f"pair-{i}" for i in range(5)]
        shape = line([0.5, 0.8, 0.9, 1.0] if f is None else f, kept=kept)
        random = {
            str(seed): {
                "cpr": 0.2 + 0.01 * seed,
                "cmd": 0.8 - 0.01 * seed,
                **line([0.0, 0.01 * seed, 0.1, 1.0]),
            }
            for seed in range(seeds)
        }
        control = {
            "cpr": 0.21,
            "cpr_interval": [0.2, 0.22],
            "cpr_difference": [each - 0.21 for each in cpr],
            "cmd": 0.79,
            "cmd_interval": [0.78, 0.8],
            "cmd_difference": [-0.67, -0.74, -0.59],
            "seeds": random,
        }
        fields: dict[str, Any] = {
            "kind": "faithfulness",
            "model": Spec(name=model, args={"family": "gpt2", "n_edges": N_EDGES}),
            "task": Spec(name="ioi", args={"split": "test", "counterfactual": "abc"}),
            "method": Spec(name=method),
            "metric": Spec(name="logit_diff", args={"profile": profile}),
            "measures": [
                Measure(name="cpr", value=cpr[0], low=cpr[1], high=cpr[2], n=len(names)),
                Measure(name="cmd", value=0.1234, low=0.05, high=0.2, n=len(names)),
            ],
            "per_example": {
                key: [1.25] * len(names)
                for key in ("clean", "empty", *(f"value@{p:g}" for p in FRACTIONS))
            },
            "example_ids": names,
            "groups": names,
            "curves": {"fractions": FRACTIONS, "value": shape, "magnitude": shape},
            "controls": {
                "denominator": [*denominator, 0.95],
                "random": control,
                "random-paths": control,
            },
            "realised": {"localize_seconds": 1.5, "evaluate_seconds": 2.0},
            "provenance": Provenance(
                created="2026-01-01T00:00:00+00:00",
                commit="abc123",
                dirty=True,
                packages={"torch": "2"},
                python="3.11",
                machine="Linux",
                device="cpu",
                dtype="float32",
                threads=2,
                seed=0,
                data_hash="d4t4",
            ),
        }
        return Record(**(fields | changes))

    return make


@pytest.fixture
def undefined(make_record: Callable[..., Record]) -> Record:
    """A record in which every f and area is NaN, as it comes back from JSON."""
    record = make_record(cpr=(NAN, NAN, NAN), f=[None] * 4, denominator=(-0.5, 0.7))
    broken = [Measure(name=name, value=NAN, n=5, n_undefined=4) for name in ("cpr", "cmd")]
    return Record.model_validate_json(
        record.model_copy(update={"measures": broken}).model_dump_json()
    )


@pytest.fixture(scope="session")
def scores() -> EdgeScores:
    """Heavy-tailed scores of both signs on a graph of realistic size."""
    graph = Graph(30, 9)
    generator = torch.Generator().manual_seed(1)
    draw = [torch.randn(size, generator=generator) for size in (graph.n_writers, graph.n_readers)]
    noise = torch.randn(graph.n_writers, graph.n_readers, generator=generator)
    return EdgeScores.of(graph, noise * draw[0].abs()[:, None] ** 3 * draw[1].abs()[None, :] ** 3)


@pytest.fixture(scope="session")
def circuits(scores: EdgeScores) -> dict[int, Circuit]:
    """Connected circuits of at least so many edges, and fewer than 1,000."""
    found: dict[int, Circuit] = {}
    for n in (5, 60, 300):
        size = n
        while len(circuit := scores.top(size, by="magnitude").pruned()) < n:
            size = int(size * 1.5)
        found[n] = circuit
    return found


@pytest.fixture
def curve() -> FaithfulnessCurve:
    """A curve as `faithfulness_curve` returns it."""
    ids, kept = ("x", "y"), (0, 90, 200, 1000)
    values = np.array([[0.0, 0.0], [0.4, 0.6], [0.7, 0.9], [1.0, 1.0]])
    empty, full = np.zeros(2), np.ones(2)
    rule = Rule("strict", FRACTIONS, N_EDGES, empty, full, ids)
    sweeps = {
        by: rule.sweep(by, (10, 100, 200, 1000), kept, values) for by in ("value", "magnitude")
    }
    drawn = {0: (kept, values)}
    return FaithfulnessCurve(
        label="my-<method>",
        profile="strict",
        objective="logit_diff",
        n_edges=N_EDGES,
        fractions=tuple(FRACTIONS),
        sweeps=sweeps,
        controls=Controls("logit_diff", ids, tuple(FRACTIONS), empty, full, drawn, drawn),
        random={0: sweeps["value"]},
        random_paths={0: sweeps["value"]},
        ids=ids,
        groups=ids,
        denominator=rule.denominator,
        n_undefined=0,
        warnings=("Only 2 examples: intervals are rough.",),
        notes={"method": "eap", "model": "tiny-model"},
    )


@pytest.fixture
def parse() -> Callable[[Drawing | str], ElementTree.Element]:
    """A drawing or its SVG as a tree; malformed XML is an error."""
    return lambda given: ElementTree.fromstring(given if isinstance(given, str) else given.svg)
