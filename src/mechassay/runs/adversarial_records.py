"""The record of a circuit's divergences: tables, worst pairs run again, groups,
controls, and what is to be said about them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mechassay.adversarial.controls import first_part
from mechassay.adversarial.divergence import Tolerance
from mechassay.adversarial.divergence_file import DivergenceFile
from mechassay.adversarial.fields import fields_of
from mechassay.adversarial.pools import TEMPLATE, worst_apart
from mechassay.adversarial.statistics import chosen_maps, finite, heat_map, histogram
from mechassay.adversarial.worst import WorstCase, cases_at, disagreements, largest, random_cases
from mechassay.models.constants import constants_of
from mechassay.records import Measure, Record, Spec, provenance
from mechassay.stats.groups import Field
from mechassay.stats.resampled import split_by
from mechassay.tasks.task import settings_of

if TYPE_CHECKING:
    from mechassay.circuits.spec import FoundCircuit
    from mechassay.runs.adversarial import AdversarialJob

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

    def __init__(self, job: AdversarialJob) -> None:
        self.job = job
        self.corrupted = self._summary(job.values.corrupted, np.random.default_rng(job.run.seed))

    def _summary(
        self, values: Float[np.ndarray, "*pairs"], rng: np.random.Generator
    ) -> dict[str, Any]:
        return {
            "summary": self.job.statistics.table(values, rng),
            "exceedance": self.job.statistics.exceedance(values, rng),
        }

    def record(self, number: int) -> Record:
        """The record of the circuit that was asked for at that place."""
        begin = time.perf_counter()
        run, empty = self.job.run, self.job.values.corrupted
        each, values = self.job.circuits[number], self.job.values.circuits[number]
        # Each circuit has its own stream, so that what is done already changes nothing.
        rng = np.random.default_rng((run.seed, number))
        alone = self._alone(each, values, np.random.default_rng((run.seed, number, RANDOM_CASES)))
        found = self._summary(values, rng)
        tokenizer = self.job.model.tokenizer
        assert tokenizer is not None, "pools are made with a tokenizer"
        fields = fields_of(
            self.job.pools[0],
            self.job.pools[1] if run.paired else None,
            tokenizer,
            grid=values.ndim == 2,
        )
        fields = [self._within(field) for field in fields]
        # What is rounding is no difference between labels.
        rounded = np.round(values, DECIMALS)
        groups = self.job.statistics.groups(rounded, empty, fields, rng)
        most, paths = (
            float(max(np.nanmax(values), 0.0)),
            self.job.controls.paths[len(each.circuit.pruned())],
        )
        curves = {
            **found,
            "histogram": histogram(values, empty, paths, most),
            "histogram_all": histogram(
                values, empty, paths, float(max(most, np.nanmax(empty), np.nanmax(paths)))
            ),
            "worst": [self._case(case, empty) for case in alone.worst],
            "worst_distinct": [self._case(case, empty) for case in alone.distinct],
            "split": self._split(values, empty),
            "groups": groups,
            "heat_maps": [
                heat_map(rounded, empty, two)
                for two in chosen_maps(fields, groups, values.ndim, self.job.heat_maps)
            ],
        }
        realised = {
            "evaluate_seconds": self.job.seconds,
            "analyse_seconds": round(time.perf_counter() - begin, 3),
        }
        about = self.job.folder.data()
        about["values"] = {
            "file": self.job.values_file.name,
            "hash": DivergenceFile.file_hash(self.job.values_file),
        }
        n = len(each.circuit)
        model = self.job.model
        return Record(
            kind=KIND,
            model=Spec(
                name=model.name, args={"family": model.family, "n_edges": model.graph.n_edges}
            ),
            task=Spec(name=self.job.task.name, version=self.job.task.version, args=self._task()),
            method=Spec(
                name=each.text,
                args={"edges": n, "live edges": len(each.circuit.pruned()), **each.about},
            ),
            metric=Spec(
                name="kl", args={"of": "model from circuit", "unit": "nats", "position": "last"}
            ),
            measures=_measures(found, values, empty, Tolerance.of(model.dtype)),
            per_example={},
            example_ids=[],
            groups=[],
            curves=finite(curves),
            controls=finite(self._controls(each, alone)),
            realised=realised,
            data=about,
            warnings=[*self._broken(alone.wrong), *self._cautions(each)],
            provenance=provenance(
                device=str(model.device),
                dtype=str(model.dtype).removeprefix("torch."),
                seed=run.seed,
                data_hash=about["prompts"]["hash"],
            ),
        )

    def _task(self) -> dict[str, Any]:
        run = self.job.run
        return {
            "split": run.split,
            "counterfactual": (
                run.counterfactual or self.job.task.counterfactual_for(self.job.model.tokenizer)
            ),
            "design": run.design if run.paired else "clean prompts",
            "population": run.enumerate_all,
            "ablation": run.ablation,
            "n_clean": len(self.job.pools[0]),
            **({"n_corrupted": len(self.job.pools[1])} if run.paired else {}),
            **({"same": ", ".join(run.same)} if run.same else {}),
            **({"where": ", ".join(run.where)} if run.where else {}),
            "least_effect": run.least_effect,
            **settings_of(self.job.task),
        }

    def _split(
        self, values: Float[np.ndarray, "*pairs"], empty: Float[np.ndarray, "*pairs"]
    ) -> dict[str, Any]:
        """A grid's pairs by whether both prompts are built the same way;
        why not, where the task does not say.
        """
        if values.ndim != 2:
            return {"halves": [], "templates": 0}
        sides = [pool.labels(TEMPLATE) for pool in self.job.pools]
        if sides[0] is None or sides[1] is None:
            return {"halves": [], "templates": None}
        found = split_by(
            values, empty, sides[0], sides[1], self.job.run.seed, self.job.run.n_resamples
        )
        return {
            "halves": [asdict(half) for half in found],
            "templates": len({*sides[0], *sides[1]}),
        }

    def _cautions(self, each: FoundCircuit) -> list[str]:
        """What makes a sound record say less than it seems to."""
        found: list[str] = []
        if not len(each.circuit.pruned()):
            found.append("No path leads from input to logits: this is the empty circuit.")
        if "split" in each.about and each.about["split"] == self.job.run.split:
            found.append(
                f"The circuit was found on the split {self.job.run.split} that it is evaluated on."
            )
        if not any(pool.fields for pool in self.job.pools):
            found.append(NO_FIELDS_TEXT.format(self.job.task.name))
        return found

    def _alone(
        self, each: FoundCircuit, values: Float[np.ndarray, "*pairs"], rng: np.random.Generator
    ) -> _Alone:
        """The worst pairs, those of different prompts, and some random ones,
        each run again by itself.
        """
        job = self.job
        ablated = None if job.run.paired else constants_of(job.constants)
        texts = [[prompt.text for prompt in pool.prompts] for pool in job.pools]
        worst, distinct = (
            largest(values.reshape(-1), job.run.worst),
            worst_apart(values, job.run.worst, *texts),
        )
        places = np.unique(np.concatenate([worst, distinct]))
        cases = dict(
            zip(
                places.tolist(),
                cases_at(job.model, each.circuit, *job.pools, values, places, ablated=ablated),
                strict=True,
            )
        )
        drawn = random_cases(
            job.model, each.circuit, *job.pools, values, RANDOM_CASES, rng, ablated=ablated
        )
        return _Alone(
            [cases[place] for place in worst.tolist()],
            [cases[place] for place in distinct.tolist()],
            drawn,
        )

    def _case(self, case: WorstCase, empty: Float[np.ndarray, "*pairs"]) -> dict[str, Any]:
        sides = {"clean_prompt": (self.job.pools[0], case.clean)}
        if self.job.run.paired:
            sides["corrupted_prompt"] = (self.job.pools[1], case.corrupted)
        prompts = {
            name: {
                "text": pool.prompts[row].text,
                "parts": {part: list(span) for part, span in pool.prompts[row].spans.items()},
            }
            for name, (pool, row) in sides.items()
        }
        place = (case.clean, case.corrupted) if empty.ndim == 2 else (case.clean,)
        return {**asdict(case), "empty": float(empty[place]), **prompts}

    def _within(self, field: Field) -> Field:
        """A field whose labels are compared within the strata of a restricted grid:
        only there do prompts have the same partners.
        """
        part = self.job.part
        if part is None:
            return field
        codes = (part.clean if field.side == "clean" else part.corrupted).tolist()
        own = field.strata or ("",) * len(codes)
        return dataclasses.replace(
            field,
            strata=tuple(f"{code} {stratum}" for code, stratum in zip(codes, own, strict=True)),
        )

    def _controls(self, each: FoundCircuit, alone: _Alone) -> dict[str, Any]:
        found, drawn = self.job.controls, alone.drawn
        cases = list(
            {
                (case.clean, case.corrupted): case for case in (*alone.worst, *alone.distinct)
            }.values()
        )
        n, live = len(each.circuit), len(each.circuit.pruned())
        random, paths = found.random[n], found.paths[live]
        return {
            "checks": [{**asdict(check), "passed": check.passed} for check in found.checks],
            "failures": self._broken(alone.wrong),
            "worst": {"n": len(cases), "n_wrong": len(disagreements(cases))},
            "drawn": {
                "n": len(drawn),
                "n_wrong": len(disagreements(drawn)),
                "largest": max((abs(case.value - case.again) for case in drawn), default=0.0),
            },
            "corrupted": self.corrupted,
            "random": {"edges": n, "live": found.n_live[n], **self._random(random)},
            "random_paths": {
                "edges": found.n_edges[live],
                "live": found.n_edges[live],
                **self._random(paths),
            },
        }

    def _random(self, part: Float[np.ndarray, "*part"]) -> dict[str, Any]:
        """The distribution of a random circuit on the part of the pairs it is run on."""
        drawn = self.job.part
        if drawn is not None:
            rows, columns = first_part(
                drawn, self.job.values.corrupted.shape, self.job.run.controls
            )
            drawn = drawn.select(rows.tolist(), columns.tolist())
        n_resamples = min(200, self.job.run.n_resamples)
        statistics = dataclasses.replace(
            self.job.statistics, population=False, n_resamples=n_resamples, part=drawn
        )
        table = statistics.table(part, np.random.default_rng(self.job.run.seed))
        return {"pairs": int((~np.isnan(part)).sum()), "seed": self.job.run.seed, "summary": table}

    def _broken(self, wrong: Sequence[WorstCase]) -> list[str]:
        """Every control that fails, in words."""
        answers = {"full": "KL = 0", "empty": "the KL of the model on the corrupted prompt"}
        found = [
            f"The {check.name} circuit does not give {answers[check.name]}: {check.n_wrong:,} of"
            f" {check.n:,} pairs differ, by up to {check.largest:.3g} nats. The divergences cannot"
            " be trusted."
            for check in self.job.controls.checks
            if not check.passed
        ]
        if wrong:
            case = wrong[0]
            found.append(
                f"{len(wrong)} of the pairs that were run again have another divergence when they"
                f" are run alone, the first {case.again:.6g} instead of {case.value:.6g} nats. The"
                " divergences cannot be trusted."
            )
        largest = float(np.nanmax(self.job.values.corrupted))
        if largest <= Tolerance.of(self.job.model.dtype).absolute:
            found.append(
                f"Without any circuit the divergence is at most {max(largest, 0.0):.1g} nats, on"
                " all pairs: the model says the same after clean and corrupted prompts, and every"
                " circuit would pass."
            )
        return found


def _measures(
    found: Mapping[str, Any],
    values: Float[np.ndarray, "*pairs"],
    empty: Float[np.ndarray, "*pairs"],
    allowed: Tolerance,
) -> list[Measure]:
    """What the tables say as measures.

    `bound X` is the upper bound of X, undefined where the pairs are too few; `worse than empty` the
    share of pairs on which the circuit diverges more than the empty one, by more than rounding.
    """
    n = int((~np.isnan(values)).sum())
    rows = [(row["name"], row) for row in found["summary"]] + [
        (f"above {row['above']:g}", row) for row in found["exceedance"]
    ]
    measures: list[Measure] = []
    for name, row in rows:
        value, low, high = (_finite(row[key]) for key in ("value", "low", "high"))
        measures.append(Measure(name=name, value=value, low=low, high=high, n=n))
        if not np.isnan(row["bound"]):
            measures.append(Measure(name=f"bound {name}", value=_finite(row["bound"]), n=n))
    measures.append(
        Measure(
            name="worse than empty",
            value=float(((values > empty) & ~allowed.holds(values, empty)).sum()) / n,
            n=n,
        )
    )
    return measures


def _finite(value: float) -> float:
    return value if np.isfinite(value) else float("nan")
