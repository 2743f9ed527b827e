"""Adversarial evaluation of circuits: the divergence of every pair, kept, controlled, summarised and reported.

The folder of a run holds

    plan.json          what is run
    prompts.json       both pools: texts, parts, what was dropped
    values.parquet     the divergence of every pair from every circuit, and from the empty one (`adversarial.values`)
    records/*.json     one record a circuit: summary, bounds, worst pairs, groups, controls
    found/             scores of the methods that found circuits, a run folder of its own
    report.html

The same command goes on where it was killed: divergences are kept as they are made (in values/, until the
parquet file is there), methods by their own checkpoints, and the file ends the same bit for bit.

Ablation by constants (zero, mean, ...) leaves nothing for a corrupted prompt to do. The divergence is then one number for each
clean prompt, whatever the design, and the prompts are independent draws.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from mechassay.adversarial.agreement import Agreement
from mechassay.adversarial.bounds import check_share
from mechassay.adversarial.controls import Controls, controls_of, random_circuit, run_controls
from mechassay.adversarial.design import DESIGN_KINDS
from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.findings import Statistics, fields_of, finite, heat_maps, histogram
from mechassay.adversarial.pools import Pool, draw_pools
from mechassay.adversarial.population import check_finite, enumerate_pools
from mechassay.adversarial.summary import PERCENTILES
from mechassay.adversarial.values import Values, arrow
from mechassay.adversarial.worst import WorstCase, disagreements, worst_cases
from mechassay.circuits.ablation import ABLATIONS
from mechassay.circuits.faithfulness import evaluate
from mechassay.circuits.node_scores import Scores
from mechassay.circuits.scores import Circuit
from mechassay.errors import BadUsage, MechassayError, UnknownName
from mechassay.models.model import Model
from mechassay.pairs import Batch
from mechassay.progress import BAR, Progress
from mechassay.records import Measure, Record, Spec, provenance
from mechassay.report.adversarial import adversarial_page
from mechassay.runs.circuits import CircuitJob, CircuitRun, method_name
from mechassay.runs.folder import RunFolder, write_text
from mechassay.runs.named_circuits import FoundCircuit, NamedCircuit, find_circuits
from mechassay.runs.truths import task_named
from mechassay.tasks.task import settings_of

KIND = "adversarial"
DECIMALS = 4
ABOVE = (0.01, 0.1, 1.0, 5.0)
PAIRED = "counterfactual"
"""The one ablation that a corrupted prompt has a part in here."""


@dataclass(frozen=True)
class AdversarialRun:
    """What to run. The fields are the plan that is stored with the results.

    Attributes:
        circuits: as they are typed, see `runs.named_circuits`.
        design: grid, matched or independent.
        n_clean, n_corrupted: prompts of each pool; only a grid's may differ.
        enumerate_all: take every matched pair of the split instead of a sample.
        percentiles: of the table.
        above: thresholds in nats whose exceedance is asked for.
        worst: how many of the worst pairs to show.
        n_resamples, n_permutations: of the bootstrap of a grid, and of the tests of labels.
    """

    model: str
    task: str
    circuits: tuple[str, ...]
    design: str = "grid"
    n_clean: int = 1000
    n_corrupted: int = 1000
    enumerate_all: bool = False
    split: str = "test"
    counterfactual: str | None = None
    ablation: str = PAIRED
    train_limit: int = 100
    dtype: str = "float32"
    prepend_bos: bool = False
    seed: int = 0
    percentiles: tuple[float, ...] = PERCENTILES
    above: tuple[float, ...] = ABOVE
    worst: int = 10
    n_resamples: int = 1000
    n_permutations: int = 2000

    @property
    def paired(self) -> bool:
        """Whether corrupted prompts matter."""
        return self.ablation == PAIRED

    @property
    def drawn_as(self) -> str:
        """The design that the statistics see: clean prompts alone are independent."""
        return self.design if self.paired else "independent"

    def plan(self) -> dict[str, Any]:
        """The plan as plain values, with hashes of the files that circuits come from."""
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        files = {text: NamedCircuit.parse(text).file_hash for text in self.circuits}
        return {**plain, "files": {text: digest for text, digest in files.items() if digest}}

    def check(self) -> None:
        """Refuse what cannot be run; see `AdversarialJob`."""
        if self.design not in DESIGN_KINDS:
            raise UnknownName("design", self.design, DESIGN_KINDS)
        if self.ablation not in ABLATIONS:
            raise UnknownName("ablation", self.ablation, ABLATIONS)
        if self.ablation == "resample":
            raise BadUsage(
                "Resample ablation pairs each prompt with another clean one: take --ablation counterfactual with --design independent."
            )
        if not self.circuits or len(set(self.circuits)) < len(self.circuits):
            raise BadUsage(f"Give one or more different circuits; got {', '.join(self.circuits) or 'none'}.")
        for share in self.percentiles:
            check_share("A percentile", share)
        least = {"worst": 0, "n_resamples": 1, "n_permutations": 1, "train_limit": 1}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise BadUsage(f"{name} must be {number} or more; got {getattr(self, name)}.")
        if self.design != "grid" and self.n_clean != self.n_corrupted:
            raise BadUsage(f"{self.design.capitalize()} pairs need pools of one size; got {self.n_clean} and {self.n_corrupted} prompts.")
        if self.enumerate_all and not (self.design == "matched" and self.paired):
            raise BadUsage("Only matched pairs with counterfactual ablation can be enumerated: --design matched.")


class AdversarialJob:
    """A plan, its folder, and what is still to be done.

    Raises:
        BadUsage, UnknownName: something in the plan is wrong, or the folder holds another plan.
        MissingExtra: pyarrow is not installed.
    """

    def __init__(self, run: AdversarialRun, output: Path, load: Callable[[], Model], *, progress: Progress = BAR) -> None:
        # Everything that can be wrong with what was typed is found before the model is loaded.
        run.check()
        self.run, self.progress, self._load = run, progress, load
        self.named = [NamedCircuit.parse(text) for text in run.circuits]
        self.task = task_named(run.task)
        if run.enumerate_all:
            check_finite(self.task)
        arrow()
        self.folder = RunFolder.open(output, run.plan())
        self.statistics = Statistics(
            run.drawn_as, run.enumerate_all, run.percentiles, run.above, n_resamples=run.n_resamples, n_permutations=run.n_permutations
        )

    @cached_property
    def model(self) -> Model:
        return self._load()

    @cached_property
    def finder(self) -> CircuitJob:
        """What finds circuits on the train split, and has the constants that ablated edges carry."""
        run = self.run
        methods = tuple(dict.fromkeys(each.name for each in self.named if each.kind == "method"))
        plan = CircuitRun(
            model=run.model,
            task=run.task,
            methods=methods,
            counterfactual=run.counterfactual,
            ablation=run.ablation,
            train_limit=run.train_limit,
            dtype=run.dtype,
            prepend_bos=run.prepend_bos,
            seed=run.seed,
        )
        return CircuitJob(plan, self.folder.path / "found", lambda: self.model, progress=self.progress)

    @cached_property
    def circuits(self) -> list[FoundCircuit]:
        """All circuits, on the model's graph.

        Raises:
            BadUsage: the folder holds results on other circuits of these names.
        """
        run = self.run
        found = find_circuits(self.named, self.model, run.model, run.ablation, run.seed, self._score)
        digest = hashlib.sha256()
        for each in found:
            edges, neurons = each.circuit.edges, each.circuit.neurons
            digest.update(edges.numpy().tobytes() + (b"" if neurons is None else neurons.numpy().tobytes()))
        self.folder.save_data("circuits", {"hash": digest.hexdigest(), "edges": {each.text: len(each.circuit) for each in found}})
        return found

    def _score(self, methods: Sequence[str]) -> Mapping[str, Scores]:
        from mechassay.circuits.methods import METHODS

        scores = self.finder.localize()
        for failure in self.finder.failures:
            raise MechassayError(f"{failure.cell['method']} found no circuit: {failure.message}")
        return {text: scores[method_name(METHODS.make(text))] for text in methods}

    @cached_property
    def pools(self) -> tuple[Pool, Pool]:
        """Clean and corrupted prompts; without a part for the corrupted ones they are the clean ones.

        Raises:
            BadUsage: the folder holds results on other prompts.
        """
        run, task, model = self.run, self.task, self.model
        if run.enumerate_all:
            pools = enumerate_pools(task, model, split=run.split, counterfactual=run.counterfactual, seed=run.seed)
        elif run.paired:
            pools = draw_pools(
                task,
                model,
                run.n_clean,
                run.n_corrupted,
                matched=run.design == "matched",
                split=run.split,
                counterfactual=run.counterfactual,
                seed=run.seed,
            )
        else:
            clean, _ = draw_pools(task, model, run.n_clean, 1, split=run.split, counterfactual=run.counterfactual, seed=run.seed)
            pools = clean, clean
        self._keep(pools)
        return pools

    def _keep(self, pools: tuple[Pool, Pool]) -> None:
        sides = dict(zip(("clean", "corrupted") if self.run.paired else ("clean",), pools, strict=False))
        text = "{" + ",\n".join(f'"{side}": {_as_json(pool)}' for side, pool in sides.items()) + "}"
        digest = hashlib.sha256(text.encode())
        for pool in sides.values():
            digest.update(pool.tokens.numpy().tobytes())
        dropped = {f"{side}: {reason}": count for side, pool in sides.items() for reason, count in pool.dropped.items()}
        sizes = {side: len(pool) for side, pool in sides.items()}
        self.folder.save_data("prompts", {"hash": digest.hexdigest(), "tokens": pools[0].tokens.shape[1], **sizes, "dropped": dropped})
        if not (file := self.folder.path / "prompts.json").is_file():
            write_text(file, text)

    @property
    def values_file(self) -> Path:
        return self.folder.path / "values.parquet"

    @cached_property
    def values(self) -> Values:
        """The divergences: those in the folder, or made now."""
        names = tuple(each.text for each in self.circuits)
        if self.values_file.is_file():
            return Values.load(self.values_file, names)
        (clean, corrupted), circuits = self.pools, [each.circuit for each in self.circuits]
        begin = time.perf_counter()
        if self.run.paired:
            store = self.folder.path / "values"
            done = evaluate_pairs(
                self.model, circuits, clean, corrupted, grid=self.run.design == "grid", store=store, progress=self.progress
            )
            values = Values(names, np.array(done.circuits), np.array(done.corrupted))
        else:
            found = self._by_constants([Circuit.empty(self.model.graph), *circuits])
            values = Values(names, found[1:], found[0], paired=False)
        self._seconds = round(time.perf_counter() - begin, 3)
        values.save(self.values_file)
        shutil.rmtree(self.folder.path / "values", ignore_errors=True)
        return values

    _seconds = float("nan")

    @cached_property
    def constants(self) -> Batch:
        """The clean prompts with the constants that ablated edges carry."""
        tokens = self.pools[0].tokens
        # Answers and foils are not looked at; they only have to differ.
        return self.finder.ablated(Batch.from_tokens(tokens, tokens, [0] * len(tokens), [1] * len(tokens)).to(self.model.device))

    def _by_constants(self, circuits: Sequence[Circuit]) -> Float[np.ndarray, "circuits n"]:
        return evaluate(self.model, circuits, self.constants, "kl", progress=self.progress).astype(np.float32)

    @cached_property
    def controls(self) -> Controls:
        """Controls with a known answer, and random circuits of the same sizes."""
        sizes, model, seed = sorted({len(each.circuit) for each in self.circuits}), self.model, self.run.seed
        if self.run.paired:
            store = self.folder.path / "controls"
            found = run_controls(model, sizes, *self.pools, self.values.corrupted, seed=seed, store=store, progress=self.progress)
            shutil.rmtree(store, ignore_errors=True)
            return found
        drawn = [random_circuit(model.graph, size, seed) for size in sizes]
        values = self._by_constants([Circuit.full(model.graph), Circuit.empty(model.graph), *drawn])
        return controls_of(sizes, drawn, values, self.values.corrupted, Agreement.of(model.dtype))

    def records(self) -> list[Record]:
        """The record of every circuit; those in the folder are read, the others made."""
        stored = [self.folder.record(cell_name(text)) for text in self.run.circuits]
        there = [record for record in stored if record is not None]
        if len(there) == len(stored):
            return there
        rng = np.random.default_rng(self.run.seed)
        corrupted = self._summary(self.values.corrupted, rng)
        for number, (each, record) in enumerate(zip(self.circuits, stored, strict=True)):
            if record is None:
                # Each circuit has its own stream, so that what is done already changes nothing.
                made = self._record(each, self.values.circuits[number], corrupted, np.random.default_rng((self.run.seed, number)))
                self.folder.save_record(cell_name(each.text), made)
        return stored_records(self.folder)

    def _summary(self, values: Float[np.ndarray, "*pairs"], rng: np.random.Generator) -> dict[str, Any]:
        return {"summary": self.statistics.table(values, rng), "exceedance": self.statistics.exceedance(values, rng)}

    def _record(
        self, each: FoundCircuit, values: Float[np.ndarray, "*pairs"], corrupted: dict[str, Any], rng: np.random.Generator
    ) -> Record:
        run, empty = self.run, self.values.corrupted
        begin = time.perf_counter()
        cases = self._worst(each, values)
        found = self._summary(values, rng)
        fields = fields_of(self.pools[0], self.pools[1] if run.paired else None, grid=values.ndim == 2)
        # What is rounding is no difference between labels.
        rounded = np.round(values, DECIMALS)
        groups = self.statistics.groups(rounded, fields, rng)
        largest = float(max(values.max(), 0.0))
        curves = {
            **found,
            "histogram": histogram(values, empty, largest),
            "histogram_all": histogram(values, empty, float(max(largest, empty.max()))),
            "worst": [self._case(case, empty) for case in cases],
            "groups": groups,
            "heat_maps": heat_maps(rounded, fields, groups),
        }
        wrong = disagreements(cases)
        realised = {"evaluate_seconds": self._seconds, "analyse_seconds": round(time.perf_counter() - begin, 3)}
        about = self.folder.data()
        about["values"] = {"file": self.values_file.name, "hash": hashlib.sha256(self.values_file.read_bytes()).hexdigest()}
        n = len(each.circuit)
        model = self.model
        return Record(
            kind=KIND,
            model=Spec(name=model.name, args={"family": model.family, "n_edges": model.graph.n_edges}),
            task=Spec(name=self.task.name, version=self.task.version, args=self._task()),
            method=Spec(name=each.text, args={"edges": n, "live edges": len(each.circuit.pruned()), **each.about}),
            metric=Spec(name="kl", args={"of": "model from circuit", "unit": "nats", "position": "last"}),
            measures=_measures(found, values, empty, Agreement.of(model.dtype)),
            per_example={},
            example_ids=[],
            groups=[],
            curves=finite(curves),
            controls=finite(self._controls(n, corrupted, cases)),
            realised=realised,
            data=about,
            warnings=[*_broken(self.controls, wrong), *self._cautions(each)],
            provenance=provenance(
                device=str(model.device),
                dtype=str(model.dtype).removeprefix("torch."),
                seed=run.seed,
                data_hash=about["prompts"]["hash"],
            ),
        )

    def _task(self) -> dict[str, Any]:
        run = self.run
        return {
            "split": run.split,
            "counterfactual": run.counterfactual or self.task.default_counterfactual,
            "design": run.design if run.paired else "clean prompts",
            "population": run.enumerate_all,
            "ablation": run.ablation,
            "n_clean": len(self.pools[0]),
            **({"n_corrupted": len(self.pools[1])} if run.paired else {}),
            **settings_of(self.task),
        }

    def _cautions(self, each: FoundCircuit) -> list[str]:
        """What makes a sound record say less than it seems to."""
        found: list[str] = []
        if not len(each.circuit.pruned()):
            found.append("No path leads from input to logits: this is the empty circuit.")
        if "split" in each.about and each.about["split"] == self.run.split:
            found.append(f"The circuit was found on the split {self.run.split} that it is evaluated on.")
        return found

    def _worst(self, each: FoundCircuit, values: Float[np.ndarray, "*pairs"]) -> tuple[WorstCase, ...]:
        ablated = None if self.run.paired else self.constants.ablated
        return worst_cases(self.model, each.circuit, *self.pools, values, self.run.worst, ablated=ablated)

    def _case(self, case: WorstCase, empty: Float[np.ndarray, "*pairs"]) -> dict[str, Any]:
        sides = {"clean_prompt": (self.pools[0], case.clean)}
        if self.run.paired:
            sides["corrupted_prompt"] = (self.pools[1], case.corrupted)
        prompts = {
            name: {"text": pool.prompts[row].text, "parts": {part: list(span) for part, span in pool.prompts[row].spans.items()}}
            for name, (pool, row) in sides.items()
        }
        place = (case.clean, case.corrupted) if empty.ndim == 2 else (case.clean,)
        return {**asdict(case), "empty": float(empty[place]), **prompts}

    def _controls(self, n: int, corrupted: dict[str, Any], cases: Sequence[WorstCase]) -> dict[str, Any]:
        found = self.controls
        part = found.random[n]
        statistics = dataclasses.replace(self.statistics, population=False, n_resamples=min(200, self.run.n_resamples))
        table = statistics.table(part, np.random.default_rng(self.run.seed))
        return {
            "checks": [{**asdict(check), "passed": check.passed} for check in found.checks],
            "failures": _broken(found, disagreements(cases)),
            "worst": {"n": len(cases), "n_wrong": len(disagreements(cases))},
            "corrupted": corrupted,
            "random": {"edges": n, "live": found.n_live[n], "pairs": int(part.size), "seed": self.run.seed, "summary": table},
        }


def _as_json(pool: Pool) -> str:
    """Texts and parts, one prompt a line; there may be millions."""
    lines = (
        json.dumps({"text": prompt.text, "parts": {name: list(span) for name, span in prompt.spans.items()}}, ensure_ascii=False)
        for prompt in pool.prompts
    )
    return "[" + ",\n".join(lines) + "]"


def cell_name(text: str) -> str:
    """The file name of a circuit's record: circuits may be paths. What is changed gets a hash, so that no two are the same."""
    plain = "".join(letter if letter.isalnum() or letter in "-_.=,@" else "_" for letter in text)
    return plain if plain == text else f"{plain[-80:]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def stored_records(folder: RunFolder) -> list[Record]:
    """The records of a run that are there, in the order in which its circuits were asked for."""
    found = [folder.record(cell_name(text)) for text in folder.plan()["circuits"]]
    return [record for record in found if record is not None]


def write_report(folder: RunFolder, records: Sequence[Record]) -> Path:
    """The run's page, report.html."""
    write_text(folder.path / "report.html", adversarial_page(records))
    return folder.path / "report.html"


def _measures(
    found: Mapping[str, Any], values: Float[np.ndarray, "*pairs"], empty: Float[np.ndarray, "*pairs"], allowed: Agreement
) -> list[Measure]:
    """What the tables say as measures.

    `bound X` is the upper bound of X, undefined where the pairs are too few; `worse than empty` the share of pairs on which the
    circuit diverges more than the empty one, by more than rounding.
    """
    n = int(values.size)
    rows = [(row["name"], row) for row in found["summary"]] + [(f"above {row['above']:g}", row) for row in found["exceedance"]]
    measures: list[Measure] = []
    for name, row in rows:
        value, low, high = (_finite(row[key]) for key in ("value", "low", "high"))
        measures.append(Measure(name=name, value=value, low=low, high=high, n=n))
        if not np.isnan(row["bound"]):
            measures.append(Measure(name=f"bound {name}", value=_finite(row["bound"]), n=n))
    measures.append(Measure(name="worse than empty", value=float(((values > empty) & ~allowed.holds(values, empty)).mean()), n=n))
    return measures


def _finite(value: float) -> float:
    return value if np.isfinite(value) else float("nan")


def _broken(controls: Controls, wrong: Sequence[WorstCase]) -> list[str]:
    """Every control that fails, in words."""
    answers = {"full": "KL = 0", "empty": "the KL of the model on the corrupted prompt"}
    found = [
        f"The {check.name} circuit does not give {answers[check.name]}: {check.n_wrong:,} of {check.n:,} pairs differ, by up to "
        f"{check.largest:.3g} nats. The divergences cannot be trusted."
        for check in controls.checks
        if not check.passed
    ]
    if wrong:
        case = wrong[0]
        found.append(
            f"{len(wrong)} of the worst pairs have another divergence when they are run alone, the first {case.again:.6g} instead of "
            f"{case.value:.6g} nats. The divergences cannot be trusted."
        )
    return found
