"""The plan of an adversarial run, and what its circuits share: prompts, divergences, controls.

A plan is checked before anything is run. The file of divergences ends the same bit for bit after
an interruption. Under ablation by constants (zero, mean, ...) the divergence is one number for
each clean prompt, whatever the design, and the prompts are independent draws.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float

from mechassay.adversarial.controls import (
    SIDE,
    ControlCircuits,
    ControlResults,
    controls_of,
    run_controls,
)
from mechassay.adversarial.divergence import DivergenceFile, Tolerance
from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.pools import (
    Pool,
    agreeing,
    draw_pools,
    enumerate_pools,
    named_field,
    parse_same,
    parse_where,
)
from mechassay.adversarial.statistics import LEAST_EFFECT, Statistics, parse_map
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.ablation import ABLATIONS
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.method import check_pairing, method_name
from mechassay.circuits.methods.spec import CircuitSpec, FoundCircuit
from mechassay.circuits.scores import Scores
from mechassay.discovery.job import CircuitsJob
from mechassay.discovery.study import Study
from mechassay.errors import BadFile, BadUsage, MechassayError, one_of
from mechassay.models.model import Model, check_dtype
from mechassay.models.objectives import load_objective
from mechassay.prompts.pairs import Batch
from mechassay.results.records import Record, failure_of
from mechassay.runs import options
from mechassay.runs.folder import RunFolder
from mechassay.runs.job import Bench, Cell, option, plan_of
from mechassay.stats.bounds import PartialGrid
from mechassay.stats.distribution import DESIGN_KINDS, DesignKind, Field
from mechassay.tasks.task import Task, settings_of
from mechassay.truth.ground_truth import truth_circuit
from mechassay.utils.files import write_text

PAIRED = "counterfactual"
"""The only ablation that uses the corrupted prompt."""
CIRCUIT_HELP = (
    "canonical:NAME, truth, full, empty, random@SIZE, random-paths@SIZE, METHOD@SIZE (found on the"
    " train split), FILE.safetensors@SIZE, FILE.json, FILE.pt or FOLDER@SIZE (of circuits: the"
    " largest that fits). SIZE: edges (500) or a share of them (0.01); then :greedy to grow it from"
    " the logits. Repeat for several."
)


@dataclass(frozen=True)
class AdversarialPlan:
    """What an adversarial run does.

    Attributes:
        circuits: as they are typed, see `circuits.methods.spec`.
        design: grid, matched or independent.
        n_clean, n_corrupted: prompts of each pool; only a grid's may differ.
        same: fields that both prompts of a grid's pair agree in; where: "FIELD=VALUE" of all
            prompts (`adversarial.pools`).
        enumerate_all: take every matched pair of the split instead of a sample.
        objective, pairing: what methods look for circuits by, and on which pairs
            (`circuits.methods.method`); the task's own objective if None.
        worst: how many of the worst pairs to show.
        controls: prompts of each pool that controls are run on; of single pairs its square.
        n_resamples, n_permutations: of the bootstrap of a grid, and of the tests of labels.
        heat_maps: pairs of fields, "place,object", whose heat map is always drawn.
        least_effect: what a label must be worse by to be called so, as a share of the empty
            circuit's 99th percentile.
    """

    model: Annotated[str, options.MODEL]
    task: Annotated[str, options.TASK]
    circuits: Annotated[tuple[str, ...], option(CIRCUIT_HELP, "--circuit", "-c")]
    design: Annotated[
        DesignKind | None,
        option(
            "Each clean with each corrupted prompt, each with its own, or pairs drawn anew; grid if"
            " not given, matched with --enumerate."
        ),
    ] = None
    n_clean: Annotated[int, option("Clean prompts.", first=True)] = 1000
    n_corrupted: Annotated[
        int | None, option("Corrupted prompts of a grid; as many as clean ones if not given.")
    ] = None
    same: Annotated[
        tuple[str, ...],
        option("Only pairs of a grid whose prompts agree in this field: template, object. Repeat."),
    ] = ()
    where: Annotated[
        tuple[str, ...], option("Only prompts with this value of a field: FIELD=VALUE. Repeat.")
    ] = ()
    enumerate_all: Annotated[
        bool,
        option(
            "All matched pairs of the split, where a task has finitely many (greater-than).",
            "--enumerate",
        ),
    ] = False
    split: Annotated[str, option("Split to evaluate on: train, validation or test.")] = "test"
    counterfactual: Annotated[str | None, options.COUNTERFACTUAL] = None
    ablation: Annotated[str, options.PAIR_ABLATION] = PAIRED
    train_limit: Annotated[int, option("Pairs that methods find circuits on.")] = 100
    objective: Annotated[str | None, options.OBJECTIVE] = None
    pairing: Annotated[str, options.PAIRING] = "matched"
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    seed: Annotated[int, options.SEED] = 0
    worst: Annotated[
        int, option("How many of the worst pairs to show, each run again by itself.")
    ] = 10
    controls: Annotated[
        int,
        option("Prompts of each pool that controls are run on; of single pairs its square."),
    ] = SIDE
    n_resamples: Annotated[int, option("Of the bootstrap of a grid.", "--resamples")] = 1000
    n_permutations: Annotated[int, option("Of the tests of labels.", "--permutations")] = 2000
    heat_maps: Annotated[
        tuple[str, ...],
        option(
            "Two fields to draw a heat map of: place,object or noun,'corrupted noun'. Repeat.",
            "--heat-map",
        ),
    ] = ()
    least_effect: Annotated[
        float,
        option("Share of the empty circuit's 99th percentile that a label must be worse by."),
    ] = LEAST_EFFECT

    def __post_init__(self) -> None:
        fields = tuple(name for text in self.same for name in parse_same(text))
        filled = {
            "design": self.design or ("matched" if self.enumerate_all else "grid"),
            "n_corrupted": self.n_clean if self.n_corrupted is None else self.n_corrupted,
            "same": fields,
        }
        for name, value in filled.items():
            object.__setattr__(self, name, value)

    @property
    def paired(self) -> bool:
        """Whether corrupted prompts matter."""
        return self.ablation == PAIRED

    @property
    def drawn_as(self) -> str:
        """The design that the statistics see: clean prompts alone are independent."""
        return (self.design or "grid") if self.paired else "independent"

    def refuse(self) -> None:
        """Refuse settings that cannot be run.

        Raises:
            BadUsage, UnknownName: there is one.
        """
        one_of("design", self.design or "", DESIGN_KINDS)
        one_of("ablation", self.ablation, ABLATIONS)
        check_dtype(self.dtype)
        if self.ablation == "resample":
            raise BadUsage(
                "Resample ablation pairs each prompt with another clean one: take --ablation"
                " counterfactual with --design independent."
            )
        check_circuits(self.circuits)
        self._check_numbers()
        self._check_pairs()
        self._check_discovery()

    def _check_numbers(self) -> None:
        """Refuse numbers out of their range."""
        self._check_labels()
        least = {"worst": 0, "n_resamples": 1, "n_permutations": 1, "train_limit": 1, "controls": 1}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise BadUsage(f"{name} must be {number} or more; got {getattr(self, name)}.")

    def _check_pairs(self) -> None:
        """Refuse pairs that a design does not have."""
        if self.design != "grid" and self.n_clean != self.n_corrupted:
            raise BadUsage(
                f"{self.drawn_as.capitalize()} pairs need pools of one size; got {self.n_clean} and"
                f" {self.n_corrupted} prompts."
            )
        if self.enumerate_all and not (self.design == "matched" and self.paired):
            raise BadUsage(
                "Only matched pairs with counterfactual ablation can be enumerated: --design"
                " matched."
            )
        parse_where(self.where)
        if self.same:
            parse_same(",".join(self.same))
        if self.same and not (self.design == "grid" and self.paired):
            raise BadUsage(
                "--same chooses among the pairs of a grid with counterfactual ablation; got"
                f" {self.drawn_as} pairs."
            )
        if self.where and self.enumerate_all:
            raise BadUsage("--where chooses prompts of a sample; --enumerate takes all there are.")

    def _check_discovery(self) -> None:
        """Refuse settings of the search for circuits that no method can have."""
        if self.objective is not None:
            load_objective(self.objective)
        check_pairing(self.pairing)
        if not self.paired and self.pairing != "matched":
            raise BadUsage(
                f"Only counterfactual ablation pairs prompts; got the pairing {self.pairing} with"
                f" {self.ablation} ablation."
            )
        if (self.objective or self.pairing != "matched") and not any(
            CircuitSpec.parse(each).kind == "method" for each in self.circuits
        ):
            raise BadUsage(
                "--objective and --pairing are of circuits that a method finds, METHOD@SIZE; none"
                " was asked for."
            )

    def _check_labels(self) -> None:
        """Refuse what is wrong with how labels are looked at."""
        for text in self.heat_maps:
            parse_map(text)
        if not (math.isfinite(self.least_effect) and self.least_effect >= 0):
            raise BadUsage(
                "The least effect must be a share of the empty circuit's, 0 or more; got"
                f" {self.least_effect}."
            )


def check_circuits(circuits: Sequence[str]) -> None:
    """Refuse circuits that are not spelled right, none, or one twice.

    Raises:
        BadUsage, UnknownName: there is one.
    """
    if not circuits or len(set(circuits)) < len(circuits):
        raise BadUsage(f"Give one or more different circuits; got {', '.join(circuits) or 'none'}.")
    called = [CircuitSpec.parse(text).called for text in circuits]
    for name in called:
        if called.count(name) > 1:
            raise BadUsage(f"Two circuits are called {name!r}; rename the file of one.")


def circuit_versions(task: Task, circuits: Sequence[str]) -> dict[str, Any]:
    """The task's version and settings, and hashes of the files that circuits come from."""
    files = {text: CircuitSpec.parse(text).file_hash for text in circuits}
    return {
        "task_settings": task_plan(task),
        "files": {text: digest for text, digest in files.items() if digest},
    }


def task_plan(task: Task) -> dict[str, Any]:
    """What says which task it is, as plain values: name, version and settings."""
    return {
        "name": task.name,
        "version": task.version,
        "settings": json.loads(json.dumps(settings_of(task), default=str)),
    }


ABOVE = (0.01, 0.1, 1.0, 5.0)
"""Thresholds in nats; records say what share of the pairs exceeds each."""


class AdversarialStudy:
    """What the circuits of a run share: the prompts, the divergences and the controls."""

    def __init__(self, run: AdversarialPlan, bench: Bench) -> None:
        self.run, self.bench = run, bench
        self.folder, self.progress = bench.folder, bench.progress
        self.named = [CircuitSpec.parse(text) for text in run.circuits]
        self.task = bench.task(run.task)
        self.where = parse_where(run.where)

    @cached_property
    def model(self) -> Model:
        run = self.run
        return self.bench.model(run.model, dtype=run.dtype, prepend_bos=run.prepend_bos)

    @cached_property
    def statistics(self) -> Statistics:
        """How values are summarised."""
        run = self.run
        return Statistics(
            run.drawn_as,
            run.enumerate_all,
            above=ABOVE,
            n_resamples=run.n_resamples,
            n_permutations=run.n_permutations,
            least_effect=run.least_effect,
            part=self.part,
        )

    @cached_property
    def finder(self) -> Study:
        """What finds circuits on the train split, and has the constants of ablated edges."""
        run, name = self.run, self.task.name
        methods = tuple(dict.fromkeys(each.name for each in self.named if each.kind == "method"))
        job = CircuitsJob(
            models=(run.model,),
            tasks=(name,),
            methods=methods,
            counterfactual=run.counterfactual,
            objective=run.objective,
            pairing=run.pairing,
            ablation=run.ablation,
            train_limit=run.train_limit,
            dtype=run.dtype,
            prepend_bos=run.prepend_bos,
            seed=run.seed,
        )
        folder = RunFolder.open(
            self.folder.path / "found", plan_of(job, self.bench), growing=job.grows
        )
        models, tasks = {run.model: self.model}, {name: self.task}
        bench = Bench(folder, progress=self.progress, models=models, tasks=tasks)
        return Study(job, bench, run.model, name)

    @cached_property
    def circuits(self) -> list[FoundCircuit]:
        """All circuits, on the model's graph.

        Raises:
            BadUsage: the folder holds results on other circuits of these names.
        """
        run = self.run
        graph, truth = self.model.graph, partial(truth_circuit, run.model, run.ablation)
        scores = self._scores()
        found = [spec.find(graph, seed=run.seed, scores=scores, truth=truth) for spec in self.named]
        digest = hashlib.sha256()
        for each in found:
            edges, neurons = each.circuit.edges, each.circuit.neurons
            digest.update(
                edges.numpy().tobytes() + (b"" if neurons is None else neurons.numpy().tobytes())
            )
        self.folder.save_data(
            "circuits",
            {"hash": digest.hexdigest(), "edges": {each.text: len(each.circuit) for each in found}},
        )
        return found

    def _scores(self) -> Mapping[str, Scores]:
        """Scores of the methods that are to find circuits, by their text."""
        scores: dict[str, Scores] = {}
        for text in (spec.name for spec in self.named if spec.kind == "method"):
            name = method_name(METHODS.make(text))
            cell = Cell(name, {"method": name}, "", {"method": text})
            try:
                scores[text] = self.finder.found(cell)
            except Exception as error:
                said = failure_of({"method": name}, error).message
                raise MechassayError(f"{name} found no circuit: {said}") from error
        return scores

    @property
    def pools(self) -> tuple[Pool, Pool]:
        """Clean and corrupted prompts; the clean ones again where ablated edges carry constants.

        Raises:
            BadUsage: the folder holds results on other prompts.
        """
        return self.drawn[:2]

    @property
    def part(self) -> PartialGrid | None:
        """Which pairs of the grid there are; None if all are."""
        return self.drawn[2]

    @cached_property
    def drawn(self) -> tuple[Pool, Pool, PartialGrid | None]:
        """Both pools, and which pairs of them there are."""
        run, task, model = self.run, self.task, self.model
        if run.enumerate_all:
            pools = enumerate_pools(
                task, model, split=run.split, counterfactual=run.counterfactual, seed=run.seed
            )
        else:
            n_corrupted = (run.n_corrupted or run.n_clean) if run.paired else 1
            clean, corrupted = draw_pools(
                task,
                model,
                run.n_clean,
                n_corrupted,
                matched=run.paired and run.design == "matched",
                where=self.where,
                split=run.split,
                counterfactual=run.counterfactual,
                seed=run.seed,
            )
            pools = clean, corrupted if run.paired else clean
        part = None
        if run.same:
            *pools, agreed = agreeing(*pools, run.same)
            # Where all agree it is a grid like any other.
            part = None if agreed.mask.all() else agreed
        clean, corrupted = pools
        self._keep((clean, corrupted))
        return clean, corrupted, part

    @cached_property
    def heat_maps(self) -> list[tuple[Field, Field]]:
        """The fields of the heat maps that were asked for.

        Raises:
            UnknownName: the prompts have no such field.
        """
        clean, corrupted = self.pools
        other = corrupted if self.run.paired else None
        typed = map(parse_map, self.run.heat_maps)
        return [
            (named_field(one, clean, other), named_field(two, clean, other)) for one, two in typed
        ]

    def _keep(self, pools: tuple[Pool, Pool]) -> None:
        names = ("clean", "corrupted") if self.run.paired else ("clean",)
        sides = dict(zip(names, pools, strict=False))
        text = "{" + ",\n".join(f'"{side}": {_as_json(pool)}' for side, pool in sides.items()) + "}"
        digest = hashlib.sha256(text.encode())
        for pool in sides.values():
            digest.update(pool.tokens.numpy().tobytes())
        dropped = {
            f"{side}: {reason}": count
            for side, pool in sides.items()
            for reason, count in pool.dropped.items()
        }
        sizes = {side: len(pool) for side, pool in sides.items()}
        self.folder.save_data(
            "prompts",
            {
                "hash": digest.hexdigest(),
                "tokens": pools[0].tokens.shape[1],
                **sizes,
                "dropped": dropped,
            },
        )
        file = self.folder.path / "prompts.json"
        if not file.is_file() or file.read_bytes() != text.encode():
            write_text(file, text)

    @property
    def values_file(self) -> Path:
        return self.folder.path / "values.parquet"

    @cached_property
    def values(self) -> DivergenceFile:
        """The divergences: those in the folder, or made now."""
        names = tuple(each.text for each in self.circuits)
        if self.values_file.is_file():
            return DivergenceFile.load(self.values_file, names)
        # A field that there is not is refused before anything is run.
        (clean, corrupted), _ = self.pools, self.heat_maps
        circuits = [each.circuit for each in self.circuits]
        begin, store = time.perf_counter(), self.folder.path / "values"
        goes_on = store.exists()
        if self.run.paired:
            done = evaluate_pairs(
                self.model,
                circuits,
                clean,
                corrupted,
                grid=self.run.design == "grid",
                part=self.part,
                store=store,
                progress=self.progress,
            )
            values = DivergenceFile(names, np.array(done.circuits), np.array(done.corrupted))
        else:
            found = self._by_constants([Circuit.empty(self.model.graph), *circuits])
            values = DivergenceFile(names, found[1:], found[0], paired=False)
        if not goes_on:
            self.seconds = round(time.perf_counter() - begin, 3)
        values.save(self.values_file)
        shutil.rmtree(self.folder.path / "values", ignore_errors=True)
        return values

    seconds = float("nan")
    """What the divergences took, where they were made by this job alone."""

    @cached_property
    def constants(self) -> Batch:
        """The clean prompts with the constants that ablated edges carry."""
        tokens = self.pools[0].tokens
        # Answers and foils are not looked at; they only have to differ.
        return self.finder.ablated(
            Batch.from_tokens(tokens, tokens, [0] * len(tokens), [1] * len(tokens)).to(
                self.model.device
            )
        )

    def _by_constants(self, circuits: Sequence[Circuit]) -> Float[np.ndarray, "circuits n"]:
        return evaluate(self.model, circuits, self.constants, "kl", progress=self.progress).astype(
            np.float32
        )

    @cached_property
    def controls(self) -> ControlResults:
        """Controls with a known answer, and random circuits of the same sizes."""
        circuits, model, seed = [each.circuit for each in self.circuits], self.model, self.run.seed
        if self.run.paired:
            store = self.folder.path / "controls"
            side, part, main = self.run.controls, self.part, self.values.corrupted
            found = run_controls(
                model,
                circuits,
                *self.pools,
                main,
                seed=seed,
                side=side,
                part=part,
                store=store,
                progress=self.progress,
            )
            shutil.rmtree(store, ignore_errors=True)
            return found
        drawn = ControlCircuits.of(circuits, model.graph, seed)
        values = self._by_constants(drawn.with_checks(model.graph))
        return controls_of(drawn, values, self.values.corrupted, Tolerance.of(model.dtype))

    def check_file(self, records: Sequence[Record]) -> None:
        """Refuse records beside divergences that are not those they were made of."""
        if not records or not self.values_file.is_file():
            return
        digest = DivergenceFile.file_hash(self.values_file)
        for record in records:
            if record.values is None or record.values.sha256 != digest:
                raise BadFile(
                    f"{self.values_file}: is not the file that the record of {record.method.name}"
                    " was made of. Restore it."
                )


def _as_json(pool: Pool) -> str:
    """Texts and parts, one prompt a line; there may be millions."""
    lines = (
        json.dumps(
            {
                "text": prompt.text,
                "parts": {name: list(span) for name, span in prompt.spans.items()},
            },
            ensure_ascii=False,
        )
        for prompt in pool.prompts
    )
    return "[" + ",\n".join(lines) + "]"
