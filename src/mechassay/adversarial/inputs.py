"""What the circuits of an adversarial run share: prompts, divergences, controls.

The file of divergences ends the same bit for bit after
an interruption. Under ablation by constants (zero, mean, ...) the divergence is one number for
each clean prompt, whatever the design, and the prompts are independent draws.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from mechassay.adversarial.controls import (
    ControlCircuits,
    ControlResults,
    controls_of,
    run_controls,
)
from mechassay.adversarial.divergence import DivergenceFile, Tolerance
from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.options import AdversarialOptions
from mechassay.adversarial.pools import (
    Pool,
    agreeing,
    draw_pools,
    enumerate_pools,
    named_field,
    parse_where,
)
from mechassay.adversarial.statistics import Statistics, parse_map
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.method import method_name
from mechassay.circuits.methods.spec import CircuitSpec, FoundCircuit
from mechassay.circuits.scores import Scores
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.discovery.inputs import CircuitInputs
from mechassay.errors import BadFile, BadUsage, MechassayError
from mechassay.models.model import Model
from mechassay.prompts.batch import Batch
from mechassay.results.records import Record, Selection, failure_of
from mechassay.runs.cells import Cell
from mechassay.runs.experiment import plan_of
from mechassay.runs.folder import RunFolder
from mechassay.runs.names import circuit_labels
from mechassay.runs.worker import Worker
from mechassay.stats.bounds import PartialGrid
from mechassay.stats.distribution import Field
from mechassay.truth.ground_truth import truth_circuit
from mechassay.utils.files import write_text


def check_circuits(circuits: Sequence[str]) -> None:
    """Refuse circuits that are not spelled right, and none.

    Raises:
        BadUsage, UnknownName: there is one.
    """
    if not circuits:
        raise BadUsage("Give one or more circuits; got none.")
    for text in circuits:
        CircuitSpec.parse(text)


ABOVE = (0.01, 0.1, 1.0, 5.0)
"""Thresholds in nats; records say what share of the pairs exceeds each."""


class AdversarialInputs:
    """What the circuits of a run share: the prompts, the divergences and the controls."""

    def __init__(self, run: AdversarialOptions, worker: Worker) -> None:
        self.run, self.worker = run, worker
        self.folder, self.progress = worker.folder, worker.progress
        self.named = [CircuitSpec.parse(text) for text in run.circuits]
        self.task = worker.task(run.task)
        self.where = parse_where(run.where)

    @cached_property
    def model(self) -> Model:
        run = self.run
        return self.worker.model(run.model, dtype=run.dtype, prepend_bos=run.prepend_bos)

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
    def finder(self) -> CircuitInputs:
        """What finds circuits on the train split, and has the constants of ablated edges."""
        run, name = self.run, self.task.name
        methods = tuple(dict.fromkeys(spec.name for spec in self.named if spec.kind == "method"))
        experiment = CircuitsExperiment(
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
            self.folder.path / "found", plan_of(experiment, self.worker), growing=experiment.grows
        )
        models, tasks = {run.model: self.model}, {name: self.task}
        worker = Worker(folder, progress=self.progress, models=models, tasks=tasks)
        return CircuitInputs(experiment, worker, run.model, name)

    @cached_property
    def circuits(self) -> list[FoundCircuit]:
        """All circuits, on the model's graph.

        Raises:
            BadUsage: the folder holds results on other circuits of these names.
        """
        run = self.run
        about: dict[str, Any] = {
            "truth": partial(truth_circuit, self.model, run.ablation),
            "scores": self._scores(),
        }
        labels = circuit_labels(run.circuits)
        circuits = [
            spec.find_in(
                self.model,
                transfer=run.transfer,
                label=labels[spec.text],
                seed=run.seed,
                **about,
            )
            for spec in self.named
        ]
        digest = hashlib.sha256()
        for circuit in circuits:
            edges, neurons = circuit.circuit.edges, circuit.circuit.neurons
            digest.update(
                edges.numpy().tobytes() + (b"" if neurons is None else neurons.numpy().tobytes())
            )
        self.folder.save_data(
            "circuits",
            {
                "hash": digest.hexdigest(),
                "edges": {circuit.text: len(circuit.circuit) for circuit in circuits},
            },
        )
        return circuits

    @property
    def selections(self) -> dict[str, Selection]:
        """The prompts and circuits of the run, and the pairs that circuits were found on."""
        stored = self.folder.selections()
        if any(spec.kind == "method" for spec in self.named):
            found_on = self.finder.worker.folder.selections(self.finder.group)
            stored |= {role: pairs for role, pairs in found_on.items() if role == "train"}
        return stored

    def _scores(self) -> Mapping[str, Scores]:
        """Scores of the methods that are to find circuits, by their text."""
        scores: dict[str, Scores] = {}
        for text in (spec.name for spec in self.named if spec.kind == "method"):
            name = method_name(METHODS.make(text))
            cell = Cell(name, {"method": name}, "", {"method": text})
            try:
                scores[text] = self.finder.scores_of(cell)
            except Exception as error:
                message = failure_of({"method": name}, error).message
                raise MechassayError(f"{name} found no circuit: {message}") from error
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
                model, task, split=run.split, counterfactual=run.counterfactual, seed=run.seed
            )
        else:
            n_corrupted = (run.n_corrupted or run.n_clean) if run.paired else 1
            clean, corrupted = draw_pools(
                model,
                task,
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
        names = tuple(circuit.text for circuit in self.circuits)
        if self.values_file.is_file():
            return DivergenceFile.load(self.values_file, names)
        # A field that there is not is refused before anything is run.
        (clean, corrupted), _ = self.pools, self.heat_maps
        circuits = [own_circuit.circuit for own_circuit in self.circuits]
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
                folder=store,
                progress=self.progress,
            )
            values = DivergenceFile(names, np.array(done.circuits), np.array(done.corrupted))
        else:
            by_constant = self._by_constants([Circuit.empty(self.model.graph), *circuits])
            values = DivergenceFile(names, by_constant[1:], by_constant[0], paired=False)
        if not goes_on:
            self.seconds = round(time.perf_counter() - begin, 3)
        values.save(self.values_file)
        shutil.rmtree(self.folder.path / "values", ignore_errors=True)
        return values

    seconds = float("nan")
    """What the divergences took, where they were made by this experiment alone."""

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
        circuits, model, seed = (
            [own_circuit.circuit for own_circuit in self.circuits],
            self.model,
            self.run.seed,
        )
        if self.run.paired:
            store = self.folder.path / "controls"
            side, part, main = self.run.controls, self.part, self.values.corrupted
            controls = run_controls(
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
            return controls
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
