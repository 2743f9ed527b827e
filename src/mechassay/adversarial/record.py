"""The record of a circuit's divergences: measures, tables, controls, and the worst pairs run again.

The tables, in long form, hold the statistics of the circuit and of its controls, shares of pairs
above thresholds, histograms, the worst pairs with their most likely next tokens, pairs of one
and of two templates, the labels of each field with their test, and heat maps of two fields. The
worst pairs and some random ones are run again alone; where a value differs from the stored one
by more than rounding, a check of the record fails.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from mechassay.adversarial.controls import ControlCheck, first_part
from mechassay.adversarial.divergence import (
    DivergenceFile,
    Tolerance,
    WorstCase,
    cases_at,
    disagreements,
    largest,
    random_places,
)
from mechassay.adversarial.inputs import AdversarialInputs
from mechassay.adversarial.pools import TEMPLATE, Pool, fields_of, worst_apart
from mechassay.adversarial.statistics import ENDS, MAP_NAMES, chosen_maps, heat_map, histogram
from mechassay.circuits.methods.spec import FoundCircuit
from mechassay.models.forward import constants_of
from mechassay.results.curves import EMPTY
from mechassay.results.measures import measure_texts
from mechassay.results.records import RESULT, Check, Measure, Record, Spec, Table, Values
from mechassay.runs.worker import made_by
from mechassay.stats.bootstrap import Half, split_by
from mechassay.stats.distribution import Field
from mechassay.stats.intervals import Estimate
from mechassay.tasks.task import settings_of

Rows = Mapping[str, Any]


def summary_table(parts: Mapping[str, Sequence[Rows]]) -> Table:
    """Statistics of the circuit and of its controls."""
    rows = [
        {"of": of, "statistic": row["name"], **{key: row[key] for key in row if key != "name"}}
        for of, part_rows in parts.items()
        for row in part_rows
    ]
    return Table.of("summary", ("of", "statistic"), rows)


def exceedance_table(parts: Mapping[str, Sequence[Rows]]) -> Table:
    """Shares of pairs above thresholds."""
    rows = [{"of": of, **row} for of, part_rows in parts.items() for row in part_rows]
    return Table.of("exceedance", ("of", "above"), rows)


def histograms(ranges: Mapping[str, Rows]) -> Table:
    """Counts in bins, of the circuit's own range and of all."""
    rows = [
        {
            "range": name,
            "low": bounds["edges"][place],
            "high": bounds["edges"][place + 1],
            "circuit": count,
            "empty": bounds["corrupted"][place],
            "random-paths": bounds["random_paths"][place],
        }
        for name, bounds in ranges.items()
        for place, count in enumerate(bounds["circuit"])
    ]
    return Table.of("histogram", ("range", "low"), rows)


def worst(
    lists: Mapping[str, Sequence[WorstCase]],
    empty: Float[np.ndarray, "*pairs"],
    prompts: Mapping[str, Pool],
) -> list[Table]:
    """The worst pairs, the most likely next tokens of each, and the parts of their prompts."""
    rows = [
        {
            "list": name,
            "rank": rank,
            "clean": case.clean,
            "corrupted": case.corrupted,
            "value": case.value,
            "again": case.again,
            "empty": float(empty[(case.clean, case.corrupted)[: empty.ndim]]),
            "agrees": case.agrees,
            "clean prompt": prompts["clean"].prompts[case.clean].text,
            "corrupted prompt": prompts["corrupted"].prompts[case.corrupted].text
            if "corrupted" in prompts
            else None,
        }
        for name, cases in lists.items()
        for rank, case in enumerate(cases)
    ]
    unique = {(case.clean, case.corrupted): case for cases in lists.values() for case in cases}
    return [
        Table.of("worst pairs", ("list", "rank"), rows),
        Table.of("tokens", ("clean", "corrupted", "of", "rank"), _tokens(unique.values())),
        Table.of("parts", ("side", "prompt", "part"), _parts(unique, prompts)),
    ]


def _tokens(cases: Any) -> Iterator[Rows]:
    for case in cases:
        for of, tokens in (("model", case.model), ("circuit", case.circuit)):
            for rank, token in enumerate(tokens):
                place = {"clean": case.clean, "corrupted": case.corrupted, "of": of, "rank": rank}
                yield {**place, "text": token.text, "logit": token.logit}


def _parts(pairs: Any, prompts: Mapping[str, Pool]) -> Iterator[Rows]:
    places = {(side, pair[number]) for pair in pairs for number, side in enumerate(prompts)}
    for side, number in sorted(places):
        for part, (begin, end) in prompts[side].prompts[number].spans.items():
            yield {"side": side, "prompt": number, "part": part, "begin": begin, "end": end}


def halves_table(halves: Sequence[Half]) -> Table:
    """A grid's pairs of one template, and of two."""
    rows = [
        {
            "pairs": half.pairs,
            "of": of,
            "statistic": name,
            "n": half.n,
            **dict(zip(ENDS, numbers, strict=True)),
        }
        for half in halves
        for of, statistics in (
            (RESULT, half.circuit),
            (EMPTY, half.empty),
            ("left", {"mean": half.left}),
        )
        for name, numbers in statistics.items()
    ]
    return Table.of("templates", ("pairs", "of", "statistic"), rows)


def labels(groups: Sequence[Rows]) -> list[Table]:
    """The labels of each field and their test; and the fields."""
    about = ("side", "strata", "strata used")
    rows = [
        {
            "field": group["name"],
            "label": label,
            **{
                key: column[place]
                for key, column in group.items()
                if key not in ("name", "labels", *about)
            },
        }
        for group in groups
        for place, label in enumerate(group["labels"])
    ]
    fields = [{"field": group["name"], **{key: group[key] for key in about}} for group in groups]
    return [
        Table.of("labels", ("field", "label"), rows),
        Table.of("fields", ("field",), fields),
    ]


def heat_maps(maps: Sequence[Rows]) -> list[Table]:
    """The cells of each map, what is left out of it, and the empty circuit's numbers."""
    cells: list[Rows] = []
    left_out: list[Rows] = []
    for heat in maps:
        fields = dict(zip(("rows", "columns"), heat["fields"], strict=True))
        cells += [
            {
                **fields,
                "row": row,
                "column": column,
                **{name: heat[name][i][j] for name in MAP_NAMES},
            }
            for i, row in enumerate(heat["labels"][0])
            for j, column in enumerate(heat["labels"][1])
        ]
        left_out += [
            {**fields, "field": field, "count": count, "largest": largest}
            for field, count, largest in zip(
                heat["fields"], heat["left_out"], heat["largest_left_out"], strict=True
            )
        ]
    empty = maps[0]["empty"] if maps else {}
    statistics = [{"statistic": name, "value": value} for name, value in empty.items()]
    return [
        Table.of("heat maps", ("rows", "columns", "row", "column"), cells),
        Table.of("labels left out of heat maps", ("rows", "columns", "field"), left_out),
        Table.of("empty circuit in heat maps", ("statistic",), statistics),
    ]


KIND = "adversarial"
DECIMALS = 4
NO_FIELDS_TEXT = (
    "The prompts of {} have no fields: no label can be compared, no heat map drawn, no pair chosen"
    " by --same or --where, and a search changes nothing."
)
RANDOM_CASES = 10
"""Random pairs that are run again alone, beside the worst ones."""


class _Alone(NamedTuple):
    """Pairs that were run again alone."""

    worst: Sequence[WorstCase]
    distinct: Sequence[WorstCase]
    drawn: Sequence[WorstCase]

    @property
    def wrong(self) -> tuple[WorstCase, ...]:
        return disagreements((*self.worst, *self.distinct, *self.drawn))


class RecordMaker:
    """Records of the circuits of one run."""

    def __init__(self, inputs: AdversarialInputs) -> None:
        self.inputs = inputs
        self.empty = self._summary(inputs.values.corrupted, np.random.default_rng(inputs.run.seed))

    def _summary(
        self, values: Float[np.ndarray, "*pairs"], rng: np.random.Generator
    ) -> tuple[Sequence[Rows], Sequence[Rows]]:
        """Rows of the distribution, and of shares above thresholds."""
        statistics = self.inputs.statistics
        return statistics.table(values, rng), statistics.exceedance(values, rng)

    def record(self, number: int) -> Record:
        """The record of the circuit that was asked for at that place."""
        begin = time.perf_counter()
        run, empty = self.inputs.run, self.inputs.values.corrupted
        circuit, values = self.inputs.circuits[number], self.inputs.values.circuits[number]
        # Each circuit has its own stream, so that what is done already changes nothing.
        rng = np.random.default_rng((run.seed, number))
        alone = self._alone(
            circuit, values, np.random.default_rng((run.seed, number, RANDOM_CASES))
        )
        summary, exceedance = self._summary(values, rng)
        fields = self._fields(values)
        # What is rounding is no difference between labels.
        rounded = np.round(values, DECIMALS)
        groups = self.inputs.statistics.groups(rounded, empty, fields, rng)
        maps = [
            heat_map(rounded, empty, two)
            for two in chosen_maps(fields, groups, values.ndim, self.inputs.heat_maps)
        ]
        halves, templates = self._split(values, empty)
        random, sizes = self._random_circuits(circuit)
        model, chosen, n = self.inputs.model, self.inputs.selections, len(circuit.circuit)
        checks = self._checks(circuit, alone)
        broken = dict.fromkeys(check.says for check in checks if not check.passed)
        measures = _measures(summary, exceedance, values, empty, Tolerance.of(model.dtype))
        seconds = round(time.perf_counter() - begin, 3)
        return Record(
            kind=KIND,
            cell={"model": model.name, "task": self.inputs.task.name, "method": circuit.text},
            found_in=dict(circuit.found_in),
            specs={
                "model": model.spec(n_edges=model.graph.n_edges),
                "task": Spec(
                    name=self.inputs.task.name,
                    version=self.inputs.task.version,
                    args={**self._task(), "templates": templates},
                ),
                "method": Spec(
                    name=circuit.text,
                    args={"edges": n, "live edges": len(circuit.circuit.pruned()), **circuit.about},
                ),
                "metric": Spec(
                    name="kl", args={"of": "model from circuit", "unit": "nats", "position": "last"}
                ),
            },
            measures=measures,
            tables=[
                summary_table({RESULT: summary, EMPTY: self.empty[0], **random}),
                exceedance_table({RESULT: exceedance, EMPTY: self.empty[1]}),
                sizes,
                self._histogram(circuit, values),
                *worst({"all": alone.worst, "distinct": alone.distinct}, empty, self._prompts()),
                halves_table(halves),
                *labels(groups),
                *heat_maps(maps),
            ],
            checks=checks,
            values=Values(
                unit="pair",
                file=self.inputs.values_file.name,
                sha256=DivergenceFile.file_hash(self.inputs.values_file),
            ),
            spent={"evaluate_seconds": self.inputs.seconds, "analyse_seconds": seconds},
            data=chosen,
            warnings=[*broken, *self._cautions(circuit)],
            provenance=made_by(model, run.seed, chosen["prompts"].hash),
        )

    def _fields(self, values: Float[np.ndarray, "*pairs"]) -> list[Field]:
        """The fields by which labels are compared."""
        tokenizer, pools = self.inputs.model.tokenizer, self.inputs.pools
        assert tokenizer is not None, "pools are made with a tokenizer"
        corrupted = pools[1] if self.inputs.run.paired else None
        fields = fields_of(pools[0], corrupted, tokenizer, grid=values.ndim == 2)
        return [self._within(field) for field in fields]

    def _histogram(self, circuit: FoundCircuit, values: Float[np.ndarray, "*pairs"]) -> Table:
        """In the range of the circuit's own values, and in that of all."""
        empty = self.inputs.values.corrupted
        paths = self.inputs.controls.paths[len(circuit.circuit.pruned())]
        own = float(max(np.nanmax(values), 0.0))
        most = float(max(own, np.nanmax(empty), np.nanmax(paths)))
        ranges = {"own": own, "all": most}
        return histograms(
            {name: histogram(values, empty, paths, end) for name, end in ranges.items()}
        )

    def _prompts(self) -> dict[str, Pool]:
        """The prompts of each side that a pair has."""
        clean, corrupted = self.inputs.pools
        return {"clean": clean, **({"corrupted": corrupted} if self.inputs.run.paired else {})}

    def _task(self) -> dict[str, Any]:
        run = self.inputs.run
        return {
            "split": run.split,
            "counterfactual": (
                run.counterfactual
                or self.inputs.task.counterfactual_for(self.inputs.model.tokenizer)
            ),
            "design": run.design if run.paired else "clean prompts",
            "population": run.enumerate_all,
            "ablation": run.ablation,
            "n_clean": len(self.inputs.pools[0]),
            **({"n_corrupted": len(self.inputs.pools[1])} if run.paired else {}),
            **({"same": ", ".join(run.same)} if run.same else {}),
            **({"where": ", ".join(run.where)} if run.where else {}),
            "least_effect": run.least_effect,
            **settings_of(self.inputs.task),
        }

    def _split(
        self, values: Float[np.ndarray, "*pairs"], empty: Float[np.ndarray, "*pairs"]
    ) -> tuple[list[Half], int | None]:
        """A grid's pairs by template, and how many there are; None where the task does not say."""
        if values.ndim != 2:
            return [], 0
        sides = [pool.labels(TEMPLATE) for pool in self.inputs.pools]
        if sides[0] is None or sides[1] is None:
            return [], None
        run = self.inputs.run
        halves = split_by(values, empty, sides[0], sides[1], run.seed, run.n_resamples)
        return halves, len({*sides[0], *sides[1]})

    def _cautions(self, circuit: FoundCircuit) -> list[str]:
        """What makes a sound record say less than it seems to."""
        lines: list[str] = []
        if not len(circuit.circuit.pruned()):
            lines.append("No path leads from input to logits: this is the empty circuit.")
        split = self.inputs.run.split
        if circuit.about.get("split") == split:
            lines.append(f"The circuit was found on the split {split} that it is evaluated on.")
        if not any(pool.fields for pool in self.inputs.pools):
            lines.append(NO_FIELDS_TEXT.format(self.inputs.task.name))
        return lines

    def _alone(
        self, circuit: FoundCircuit, values: Float[np.ndarray, "*pairs"], rng: np.random.Generator
    ) -> _Alone:
        """The worst pairs, those of different prompts, and random ones, each run again alone."""
        inputs = self.inputs
        ablated = None if inputs.run.paired else constants_of(inputs.constants)
        texts = [[prompt.text for prompt in pool.prompts] for pool in inputs.pools]
        worst, distinct = (
            largest(values.reshape(-1), inputs.run.worst),
            worst_apart(values, inputs.run.worst, *texts),
        )
        random = random_places(values, RANDOM_CASES, rng)

        def cases(places: Int[np.ndarray, "k"]) -> tuple[WorstCase, ...]:
            pools = inputs.pools
            return cases_at(inputs.model, circuit.circuit, *pools, values, places, ablated=ablated)

        places = np.unique(np.concatenate([worst, distinct]))
        by_place = dict(zip(places.tolist(), cases(places), strict=True))
        of_all, apart = ([by_place[place] for place in own.tolist()] for own in (worst, distinct))
        return _Alone(of_all, apart, cases(random))

    def _within(self, field: Field) -> Field:
        """A field with the strata of a restricted grid: within them, partners are the same."""
        part = self.inputs.part
        if part is None:
            return field
        codes = (part.clean if field.side == "clean" else part.corrupted).tolist()
        own = field.strata or ("",) * len(codes)
        return dataclasses.replace(
            field,
            strata=tuple(f"{code} {stratum}" for code, stratum in zip(codes, own, strict=True)),
        )

    def _random_circuits(self, circuit: FoundCircuit) -> tuple[dict[str, Sequence[Rows]], Table]:
        """The distributions of random circuits of the circuit's size, and what was run of them."""
        controls, n, live = (
            self.inputs.controls,
            len(circuit.circuit),
            len(circuit.circuit.pruned()),
        )
        drawn = {
            "control:random": (n, controls.n_live[n], controls.random[n]),
            "control:random-paths": (
                controls.n_edges[live],
                controls.n_edges[live],
                controls.paths[live],
            ),
        }
        sizes = [
            {
                "of": of,
                "edges": edges,
                "live": on_a_path,
                "pairs": int((~np.isnan(values)).sum()),
                "seed": self.inputs.run.seed,
            }
            for of, (edges, on_a_path, values) in drawn.items()
        ]
        distributions = {of: self._random(values) for of, (_, _, values) in drawn.items()}
        return distributions, Table.of("random circuits", ("of",), sizes)

    def _random(self, part: Float[np.ndarray, "*part"]) -> Sequence[Rows]:
        """The distribution of a random circuit on the part of the pairs it is run on."""
        drawn = self.inputs.part
        if drawn is not None:
            rows, columns = first_part(
                drawn, self.inputs.values.corrupted.shape, self.inputs.run.controls
            )
            drawn = drawn.select(rows.tolist(), columns.tolist())
        n_resamples = min(200, self.inputs.run.n_resamples)
        statistics = dataclasses.replace(
            self.inputs.statistics, population=False, n_resamples=n_resamples, part=drawn
        )
        return statistics.table(part, np.random.default_rng(self.inputs.run.seed))

    def _checks(self, circuit: FoundCircuit, alone: _Alone) -> list[Check]:
        """Every control with a known answer, and what it means if it fails."""
        cases = list(
            {
                (case.clean, case.corrupted): case for case in (*alone.worst, *alone.distinct)
            }.values()
        )
        wrong = alone.wrong
        again = (
            f"{len(wrong)} of the pairs that were run again have another divergence when they are"
            f" run alone, the first {wrong[0].again:.6g} instead of {wrong[0].value:.6g} nats. The"
            " divergences cannot be trusted."
            if wrong
            else ""
        )
        return [
            *(self._known(check) for check in self.inputs.controls.checks),
            _alone_check(f"worst pairs of {circuit.text}", alone.worst, cases, again),
            _alone_check(f"random pairs of {circuit.text}", alone.drawn, alone.drawn, again),
            self._corruption(),
        ]

    def _known(self, check: ControlCheck) -> Check:
        """The full and the empty circuit."""
        answers = {"full": "KL = 0", "empty": "the KL of the model on the corrupted prompt"}
        empty = (
            "the model on the corrupted prompt"
            if self.inputs.run.paired
            else "its values in the run"
        )
        sentence = (
            f"The {check.name} circuit does not give {answers[check.name]}: {check.n_wrong:,} of"
            f" {check.n:,} pairs differ, by up to {check.largest:.3g} nats. The divergences cannot"
            " be trusted."
        )
        return Check(
            name=f"{check.name} circuit",
            must_be={"full": "0 everywhere", "empty": empty}[check.name],
            largest=check.largest,
            n=check.n,
            n_wrong=check.n_wrong,
            unit="nats",
            says="" if check.passed else sentence,
        )

    def _corruption(self) -> Check:
        """The corrupted prompt has to change what the model says."""
        values = self.inputs.values.corrupted
        n, largest = int((~np.isnan(values)).sum()), float(np.nanmax(values))
        same = largest <= Tolerance.of(self.inputs.model.dtype).absolute
        sentence = (
            f"Without any circuit the divergence is at most {max(largest, 0.0):.1g} nats, on all"
            " pairs: the model says the same after clean and corrupted prompts, and every circuit"
            " would pass."
        )
        return Check(
            name="model on clean and corrupted prompts",
            must_be="another distribution",
            largest=largest,
            n=n,
            n_wrong=n if same else 0,
            unit="nats",
            says=sentence if same else "",
        )


def _alone_check(
    name: str, listed: Sequence[WorstCase], cases: Sequence[WorstCase], says: str
) -> Check:
    n_wrong = len(disagreements(cases))
    return Check(
        name=f"{name}, each run alone",
        must_be="the stored value",
        largest=max((abs(case.value - case.again) for case in listed), default=0.0),
        n=len(cases),
        n_wrong=n_wrong,
        unit="nats",
        says=says if n_wrong else "",
    )


def _measures(
    summary: Sequence[Rows],
    exceedance: Sequence[Rows],
    values: Float[np.ndarray, "*pairs"],
    empty: Float[np.ndarray, "*pairs"],
    allowed: Tolerance,
) -> list[Measure]:
    """What the tables say as measures.

    `bound X` is the upper bound of X, undefined where the pairs are too few; `worse than empty` the
    share of pairs on which the circuit diverges more than the empty one, by more than rounding.
    """
    n = int((~np.isnan(values)).sum())
    texts = measure_texts(KIND)
    rows = [("{statistic}", {"statistic": str(row["name"])}, row) for row in summary]
    rows += [("above {threshold}", {"threshold": f"{row['above']:g}"}, row) for row in exceedance]
    measures: list[Measure] = []
    for name, own, row in rows:
        words: dict[str, Any] = own
        value, low, high, bound = (_finite(row[key]) for key in ("value", "low", "high", "bound"))
        measures.append(texts.measure(name, Estimate(value, low, high), n=n, **words))
        if not np.isnan(row["bound"]):
            measures.append(texts.measure(f"bound {name}", bound, n=n, **words))
    worse = float(((values > empty) & ~allowed.holds(values, empty)).sum()) / n
    return [*measures, texts.measure("worse than empty", worse, n=n)]


def _finite(value: float) -> float:
    return value if np.isfinite(value) else float("nan")
