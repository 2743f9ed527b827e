"""Records, scores and a curve to report on, made without a model."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.drawing import Drawing
from mechassay.circuits.evaluation.curve import TEXTS, Controls, FaithfulnessCurve
from mechassay.circuits.evaluation.ranking import RankingFacts
from mechassay.circuits.scores import EdgeScores
from mechassay.models.graph import Graph
from mechassay.prompts.independence import POOLED, PROMPTS
from mechassay.results.preconditions import ABILITY
from mechassay.results.records import Measure, Provenance, Record, Selection, Spec, Table, Values
from mechassay.stats.intervals import Interval

FRACTIONS = [0.01, 0.1, 0.2, 1.0]
N_EDGES = 1000
NAN = float("nan")
SVG = "{http://www.w3.org/2000/svg}"


def points(
    f: list[float | None],
    of: str = "result",
    seed: int | None = None,
    kept: list[int] | None = None,
) -> list[dict[str, Any]]:
    """Rows of the table of faithfulness: both rankings of a result, one of a control."""
    return [
        {
            "ranking": by,
            "of": of,
            "seed": seed,
            "fraction": fraction,
            "asked": [10, 100, 200, 1000][place],
            "kept": (kept or [8, 90, 200, 1000])[place],
            "metric": 0.0,
            "f": f[place],
            "low": None if f[place] is None else f[place] - 0.05,
            "high": None if f[place] is None else f[place] + 0.05,
            "agreement": f[place],
            "agreement_low": None if f[place] is None else f[place] - 0.05,
            "agreement_high": None if f[place] is None else f[place] + 0.05,
        }
        for by in ("value", "magnitude")[: 1 if seed is not None else 2]
        for place, fraction in enumerate(FRACTIONS)
    ]


Triple = tuple[float, float, float]


def able(names: Sequence[str], right: float = 1.0, exchanged: float = 0.5) -> Table:
    """A model that does the task: as right on all pairs, and so with exchanged prompts."""
    n = len(names)
    columns: dict[str, list[Any]] = {"pair": list(names), "group": list(names)}
    columns |= {"right": [right] * n, "exchanged": [exchanged] * n}
    columns |= {"counterfactual": [0.0] * n, "tied": [float(right == 0.5)] * n, "chance": [0.5] * n}
    return Table(name=ABILITY, keys=("pair",), columns={**columns, "contrast": list(names)})


def of_test(n: int, **counts: int) -> Selection:
    """Test pairs of as many different prompts."""
    return Selection(hash="d4t4", kept=n, counts={PROMPTS: n, POOLED: 0, **counts})


def ranking_of(method: str, **facts: Any) -> Spec:
    """Scores that rank edges in an order of their own, and were found on other pairs."""
    draw = np.random.default_rng(list(method.encode())).normal(size=16)
    own = RankingFacts("edge", tuple(draw.tolist()), "", 1000, 2, known=True)
    return Spec(name=method, args={**own.args(), **facts})


@pytest.fixture
def make_record() -> Callable[..., Record]:
    """A maker of records whose CPR, f and labels can be chosen;
    by default far better than random. Areas of random rankings lie `spread` around their mean.
    """

    def make(
        method: str = "eap",
        *,
        cpr: Triple = (0.9, 0.8, 1.0),
        random_cpr: Triple = (0.21, 0.2, 0.22),
        gain: Triple | None = None,
        f: list[float | None] | None = None,
        kept: list[int] | None = None,
        ids: list[str] | None = None,
        model: str = "tiny-model",
        task: Spec | None = None,
        profile: str = "strict",
        denominator: tuple[float, float] = (1.0, 2.0),
        seeds: int = 5,
        spread: float = 0.02,
        measures: Sequence[Measure] = (),
        **changes: Any,
    ) -> Record:
        names = ids or [f"pair-{i}" for i in range(30)]

        def area(name: str, numbers: Triple, of: str = "result") -> Measure:
            value, low, high = numbers
            return TEXTS.measure(name, value, Interval(low, high), of=of, n=len(names))

        less = gain or tuple(each - random_cpr[0] for each in cpr)
        controls = [
            measure
            for kind in ("random", "random-paths")
            for measure in (
                area("cpr", random_cpr, f"control:{kind}"),
                area("cpr", less, f"difference:{kind}"),
                area("cmd", (0.79, 0.78, 0.8), f"control:{kind}"),
                area("cmd", (-0.67, -0.74, -0.59), f"difference:{kind}"),
                area("cma", (0.21, 0.2, 0.22), f"control:{kind}"),
                area("cma", (0.67, 0.59, 0.74), f"difference:{kind}"),
            )
        ]
        low, high = denominator
        full = Measure(name="denominator", of="control:full", value=NAN, low=low, high=high)
        shape = points([0.5, 0.8, 0.9, 1.0] if f is None else f, kept=kept)
        random = [
            row
            for kind in ("random", "random-paths")
            for seed in range(seeds)
            for row in points([0.0, 0.01 * seed, 0.1, 1.0], f"control:{kind}", seed)
        ]
        middle = (seeds - 1) / 2
        areas = [
            {
                "of": f"control:{kind}",
                "seed": seed,
                "cpr": random_cpr[0] + spread * (seed - middle),
                "cmd": 0.79 + spread * (seed - middle),
                "cma": 0.21 + spread * (seed - middle),
            }
            for kind in ("random", "random-paths")
            for seed in range(seeds)
        ]
        keys = ("clean", "empty", *(f"value@{p:g}" for p in FRACTIONS))
        columns = {key: [1.25 + 0.01 * (n % 3) for n in range(len(names))] for key in keys}
        columns["empty"] = [0.25] * len(names)
        about = task or Spec(name="ioi", args={"split": "test", "counterfactual": "abc"})
        fields: dict[str, Any] = {
            "kind": "circuits",
            "cell": {"model": model, "task": about.name, "method": method},
            "specs": {
                "model": Spec(name=model, args={"family": "gpt2", "n_edges": N_EDGES}),
                "task": about,
                "method": Spec(name=method),
                "metric": Spec(name="logit_diff", args={"profile": profile}),
                "ranking": ranking_of(method),
            },
            "measures": [
                area("cpr", cpr),
                area("cmd", (0.1234, 0.05, 0.2)),
                area("cma", (0.88, 0.8, 0.95)),
                *measures,
                full,
                *(controls if seeds else ()),
            ],
            "tables": [
                Table.of("curve", ("ranking", "of", "seed", "fraction"), [*shape, *random]),
                Table.of("random areas", ("of", "seed"), areas),
                able(names),
            ],
            "data": {"test": of_test(len(names))},
            "values": Values(unit="pair", ids=names, groups=names, columns=columns),
            "spent": {"localize_seconds": 1.5, "evaluate_seconds": 2.0},
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
    record = make_record(
        cpr=(NAN, NAN, NAN), gain=(NAN, NAN, NAN), f=[None] * 4, denominator=(-0.5, 0.7)
    )
    values = record.values
    assert values is not None
    columns = {**values.columns, "clean": [(-1.0) ** n for n in range(len(values.ids))]}
    columns["empty"] = [0.0] * len(values.ids)
    record = record.changed(values=values.model_copy(update={"columns": columns}))
    broken = [TEXTS.measure(name, NAN, n=30, n_undefined=4) for name in ("cpr", "cmd")]
    others = [measure for measure in record.measures if measure.of != "result"]
    return Record.model_validate_json(record.changed(measures=[*broken, *others]).model_dump_json())


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
    drawn = {0: (kept, values)}
    return FaithfulnessCurve(
        label="my-<method>",
        profile="strict",
        n_edges=N_EDGES,
        groups=ids,
        controls=Controls("logit_diff", ids, tuple(FRACTIONS), empty, full, drawn, drawn),
        kept={"value": kept, "magnitude": kept},
        values={"value": values, "magnitude": values},
        warnings=("Only 2 examples: intervals are rough.",),
        model="tiny-model",
    )


@pytest.fixture
def parse() -> Callable[[Drawing | str], ElementTree.Element]:
    """A drawing or its SVG as a tree; malformed XML is an error."""
    return lambda given: ElementTree.fromstring(given if isinstance(given, str) else given.svg)
