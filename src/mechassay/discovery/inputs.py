"""One model on one task in a run of circuits: how its cells find circuits and measure them.

`CircuitInputs` has what they share: pairs, controls and ablation constants.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation import METRICS
from mechassay.circuits.evaluation.ablation import (
    ABLATIONS,
    OptimalAblation,
    ablate,
    ablated_values,
    load_ablated,
    save_ablated,
)
from mechassay.circuits.evaluation.curve import Controls, SmallestCircuit
from mechassay.circuits.evaluation.faithfulness import (
    evaluate,
    faithfulness_curve,
    magnitude_sweep,
    run_controls,
    smallest_circuit,
)
from mechassay.circuits.evaluation.metrics import Metric, Scored, recovery_of, with_metrics
from mechassay.circuits.evaluation.ranking import RankingFacts
from mechassay.circuits.evaluation.selection import SELECTION, faithful_circuits
from mechassay.circuits.graph_files import ENDINGS, load_scores, read_graph_file
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.method import CANDIDATES, AnyMethod, method_name, paired, settings
from mechassay.circuits.methods.stability import (
    GROUPS_A_PART,
    LEAST_PARTS,
    RESAMPLES,
    SELECTIONS,
    PartScores,
    interval_of_method,
    is_mean_of_pairs,
    parts_of,
    resampled_rows,
    reseeded,
    score_in_parts,
    seed_stability,
)
from mechassay.circuits.scores import SCORES_SHA256, EdgeScores, Scores
from mechassay.circuits.series import CircuitSeries, Ranked, load_ranked
from mechassay.discovery.options import CircuitsOptions, Construction
from mechassay.errors import BadFile, BadUsage, one_of
from mechassay.models.ability import Ability, ability_of
from mechassay.models.forward import Constants
from mechassay.models.memory import kept_run_bytes, token_budget
from mechassay.models.model import Model
from mechassay.models.objectives import load_objective
from mechassay.models.origin import accepted, found_in
from mechassay.prompts.batch import NO_TOKEN, Batch
from mechassay.prompts.independence import apart, n_shared
from mechassay.results.measures import measure_texts
from mechassay.results.preconditions import RANKING, SHARED, TEMPLATES
from mechassay.results.records import Measure, PairTokens, Record, Selection, Spec, Table, Values
from mechassay.results.report import SAID_FIRST
from mechassay.runs.cells import Cell
from mechassay.runs.worker import Worker, made_by
from mechassay.stats.chance import DRAWS_PER_TRY, FEW_DRAWS
from mechassay.stats.intervals import Interval
from mechassay.tasks.task import PRIVATE, settings_of
from mechassay.truth.ground_truth import is_truth, truth_of
from mechassay.utils.checkpoint import Clock, header_in
from mechassay.utils.files import path_hash, read_json, read_small_json, write_text
from mechassay.utils.registry import Registry

KIND = "circuits"
MOST_VALIDATION = 50
"""Pairs that the smallest circuit is chosen on, at most: it costs half a curve of so many."""
RANGES = {"cpr": (-math.inf, math.inf), "cmd": (0.0, math.inf), "cma": (0.0, 1.0)}
"""What is measured of every resample, and the values that it can have."""
OF_TRUTHS = ("recovery", "completeness", "minimality")
"""What is measured wherever a circuit is known."""


_OPTIMAL = Registry(
    "optimal ablation", {"optimal": "mechassay.circuits.evaluation.ablation:OptimalAblation"}
)
_FOUND_UNDER = re.compile(r"(?<=[:,])ablation=([^,]*)(?:,|$)")


def optimal_ablation(settings: str, seed: int) -> OptimalAblation:
    """Optimal ablation with settings as they are typed.

    Raises:
        UnknownName, BadUsage: no such setting, or of another type.
    """
    made = _OPTIMAL.make(f"optimal:{settings}" if settings else "optimal")
    return made if "seed=" in settings else dataclasses.replace(made, seed=seed)


@dataclass(frozen=True)
class TypedMethod:
    """A method as a run names it, and what edges carry where it looks for its circuit."""

    method: AnyMethod
    ablation: str
    name: str

    @staticmethod
    def of(text: str, ablation: str) -> TypedMethod:
        """Read a method with its settings.

        Args:
            ablation: that of the run, if the text names none.

        Raises:
            UnknownName, BadUsage: no such method, setting or ablation.
        """
        match = _FOUND_UNDER.search(text)
        method = METHODS.make(_FOUND_UNDER.sub("", text).rstrip(":,") if match else text)
        own = one_of("ablation", match[1], ABLATIONS) if match else ablation
        name = method_name(method)
        return TypedMethod(method, own, name if own == ablation else f"{name} ({own})")


def constructed(scores: Ranked, construction: Construction) -> Ranked:
    """Scores of edges, whose circuits are made in this way."""
    if construction == "own" or not isinstance(scores, EdgeScores):
        return scores
    about = {**scores.provenance, "selection": construction}
    return dataclasses.replace(scores, provenance=about)


@dataclass(frozen=True, eq=False)
class CircuitInputs:
    """One model on one task: the pairs, controls and constants that its cells share.

    Attributes:
        elsewhere: the models of score files, by the names of cells (`found_in`).
    """

    experiment: CircuitsOptions
    worker: Worker
    model_name: str
    task_name: str
    group: str = ""
    elsewhere: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)

    @cached_property
    def model(self) -> Model:
        experiment = self.experiment
        return self.worker.model(
            self.model_name, dtype=experiment.dtype, prepend_bos=experiment.prepend_bos
        )

    @cached_property
    def task(self) -> Any:
        return self.worker.task(self.task_name)

    @cached_property
    def objective(self) -> Any:
        return load_objective(self.experiment.objective or self.task.objective)

    def pairs(self, role: str, split: str, limit: int) -> Batch:
        """Pairs of a split as a batch;
        what was chosen is kept in the folder under `role`, "train" or "test".

        Raises:
            BadUsage: the folder holds results on other pairs; `over` templates that are not there.
        """
        experiment = self.experiment
        pairs = self._drawn(split, limit, experiment.keep)
        batch, counts = apart(self.model.batch(pairs))
        about = pairs.selection()
        about["counts"] = {**about.get("counts", {}), **counts}
        templates = [self.task.template(pair.tags) for pair in pairs]
        if role == "train" and experiment.pairing != "matched":
            batch, rows, n_alone = paired(
                batch, experiment.pairing, np.random.default_rng(experiment.seed), templates
            )
            templates = [templates[row] for row in rows]
            about |= {"pairing": experiment.pairing, "kept": len(batch), "alone": n_alone}
        if role == "train" and experiment.over == "templates":
            names = tuple(name for name in templates if name is not None)
            least = 2 if experiment.resamples else LEAST_PARTS * GROUPS_A_PART
            if len(names) < len(batch) or len(set(names)) < least:
                raise BadUsage(
                    f"--over templates needs pairs of {least} templates or more; the {len(batch)}"
                    f" train pairs of {self.task.name} have {len(set(names))}."
                )
            batch = dataclasses.replace(batch, groups=names)
            about |= {"templates": len(set(names))}
        if role == "test" and None not in templates:
            about["counts"][TEMPLATES] = len(set(templates))
        if split != PRIVATE:
            about["token_hashes"] = batch.token_hashes()
            about["first"] = pair_tokens(self.model, batch, 0).model_dump(mode="json")
        self.worker.folder.save_data(role, about, self.group)
        return batch

    def _drawn(self, split: str, limit: int, keep: str) -> Any:
        experiment = self.experiment
        return self.worker.drawn(
            "pairs",
            (self.model_name, self.task_name),
            self.model,
            split,
            limit=limit,
            counterfactual=experiment.counterfactual,
            keep=keep,
            seed=experiment.seed,
            private_seed=experiment.private_seed,
        )

    @cached_property
    def train(self) -> Batch:
        """The pairs to find circuits on, with their counterfactuals."""
        return self.pairs("train", self.experiment.train_split, self.experiment.train_limit)

    @cached_property
    def test(self) -> Batch:
        """The pairs to measure circuits on, with their counterfactuals."""
        return self.pairs("test", self.experiment.split, self.experiment.limit)

    @cached_property
    def validation(self) -> tuple[str, Batch]:
        """The pairs to choose a circuit's size on, and their split: neither those of the test, nor
        more than `MOST_VALIDATION`. Those of training, if the task has no others.
        """
        experiment = self.experiment
        if experiment.split == "validation" or not self.task.sizes.get("validation"):
            return experiment.train_split, self.train
        n = min(experiment.limit, MOST_VALIDATION)
        return "validation", self.pairs("validation", "validation", n)

    @cached_property
    def ablated_validation(self) -> Batch:
        return self.ablated(self.validation[1])

    def smallest(self, scores: Ranked) -> SmallestCircuit:
        """The smallest circuit that stands for the model, chosen on the validation pairs."""
        return smallest_circuit(
            self.model,
            scores,
            self.ablated_validation,
            self.objective,
            profile=self.experiment.profile,
            split=self.validation[0],
            seed=self.experiment.seed,
            progress=self.worker.progress,
        )

    @cached_property
    def ability(self) -> Ability:
        """Whether the model does the task on the test pairs, before `keep` chooses pairs."""
        experiment = self.experiment
        if experiment.keep == "all":
            return ability_of(self.model, self.test)
        pairs = self._drawn(experiment.split, experiment.limit, "all")
        return ability_of(self.model, apart(self.model.batch(pairs))[0])

    def selections(self) -> dict[str, Selection]:
        """Return the choice of pairs by role. The test pairs have counts of prompts that they share
        with training and validation pairs.
        """
        if self.experiment.methods:  # Not drawn yet where all scores are kept from before.
            _ = self.train
        data = self.worker.folder.selections(self.group)
        own = self.test.token_hashes()
        pooled = bool(data["test"].counts.get("pooled"))
        roles = {"training": "train", "validation": "validation"}
        shared = {
            SHARED.format(word): n_shared(own, data[role].token_hashes, pooled=pooled)
            for word, role in roles.items()
            if role in data and data[role].token_hashes
        }
        counts = {**data["test"].counts, **shared}
        return {**data, "test": data["test"].model_copy(update={"counts": counts})}

    @cached_property
    def forward_seconds(self) -> float:
        """Seconds of a forward pass of one train pair."""
        return forward_seconds(self.model, self.train)

    def _kept(self, name: str) -> str:
        return "/".join(filter(None, ("kept", self.group, name)))

    def constants_file(self, ablation: str) -> Path:
        return self.worker.folder.path / self._kept(f"{ablation}.safetensors")

    def ablated(self, batch: Batch, ablation: str = "") -> Batch:
        """The batch with an ablation, by default the run's; constants are always those of the train
        pairs, and learned ones stop by the validation pairs.
        """
        experiment, model = self.experiment, self.model
        ablation = ablation or experiment.ablation
        if ablation == "counterfactual":
            return batch
        if ablation == "resample":
            return ablate(model, batch, ablation, seed=experiment.seed)

        def constants() -> Constants:
            if ablation == "optimal":
                return optimal_ablation(experiment.optimal, experiment.seed).learn(
                    model,
                    self.train,
                    self.validation[1],
                    progress=self.worker.progress,
                    checkpoint=self.constants_file(ablation).with_suffix(".checkpoint"),
                )
            return ablated_values(model, self.train, ablation, progress=self.worker.progress)

        file = self._kept(f"{ablation}.safetensors")
        return ablate(model, batch, self.worker.kept(file, constants, load_ablated, save_ablated))

    def method(self, cell: Cell) -> TypedMethod:
        """The method of a cell."""
        return TypedMethod.of(cell["method"], self.experiment.ablation)

    @cached_property
    def ablated_test(self) -> Batch:
        return self.ablated(self.test)

    @cached_property
    def controls(self) -> Controls:
        """The empty and the full circuit and random rankings, on the test pairs."""
        file = self._kept(f"controls-{self.n_random}.safetensors")
        return self.worker.kept(file, self._run_controls, Controls.load, Controls.save)

    @property
    def n_random(self) -> int:
        """Random rankings of each kind: many where they are cheap, so that the best of all methods
        can be told from the best of as many random ones.
        """
        if self.experiment.random_rankings is not None:
            return self.experiment.random_rankings
        n_tried = len(self.experiment.methods) + len(self.experiment.scores)
        return DRAWS_PER_TRY * n_tried if self.circuit_is_known else FEW_DRAWS

    def _run_controls(self) -> Controls:
        return run_controls(
            self.model,
            self.ablated_test,
            self.objective,
            seeds=range(self.n_random),
            progress=self.worker.progress,
        )

    def scores_file(self, cell: Cell) -> Path:
        """Where the scores of a method are kept."""
        return self.worker.folder.scores_file(cell.name.removesuffix(".scores"))

    def parts_file(self, cell: Cell) -> Path:
        """Where the scores of parts of the pairs are kept, of a mean over pairs."""
        return part_scores_file(self.worker.folder.path, self.group, self.scores_file(cell))

    def ranking(self, cell: Cell) -> Ranked:
        """What a cell measures: scores of a file or a method, or a folder's circuits.

        Raises:
            BadFile, GraphMismatch: a file cannot be read or belongs to another graph.
        """
        typed, construction = cell["method"], self.experiment.construction
        if typed in self.experiment.scores:
            scores = self._given(cell)
        else:
            scores = self.scores_of(cell)
        if construction == "faithful":
            return self.faithful(cell, scores)
        if construction in SELECTIONS and isinstance(scores, Scores):
            in_parts = PartScores.load(self.parts_file(cell), scores)
            return in_parts.ordered(construction, seed=self.experiment.seed)
        return constructed(scores, construction)

    def _given(self, cell: Cell) -> Ranked:
        """Return the scores or circuits of a file, whose model is compared with the run's.

        Raises:
            BadFile, GraphMismatch: see `ranking`.
            BadUsage: they were found in another model, and no transfer is asked for.
        """
        scores = load_ranked(cell["method"], self.model.graph)
        what, transfer = f"scores {cell.labels['method']}", self.experiment.transfer
        self.elsewhere[cell.name] = found_in(what, scores.provenance, self.model, transfer=transfer)
        if isinstance(scores, CircuitSeries):
            circuits = (
                dataclasses.replace(x, provenance=accepted(x.provenance)) for x in scores.circuits
            )
            scores = dataclasses.replace(scores, circuits=tuple(circuits))
        return dataclasses.replace(scores, provenance=accepted(scores.provenance))

    def found_in(self, cell: Cell) -> dict[str, str]:
        """Return the models in which the measured scores and the known circuit of a file were
        found, if these are other models or are not known. Call it after `ranking`.
        """
        return {**self.elsewhere.get(cell.name, {}), **self.known_found_in}

    def faithful(self, cell: Cell, scores: Ranked) -> CircuitSeries:
        """Circuits of mixtures of positive and large edges, chosen on the validation pairs.

        Raises:
            BadUsage: scores that are not of edges.
        """
        if not isinstance(scores, EdgeScores):
            unit = "circuits" if isinstance(scores, CircuitSeries) else f"scores of {scores.unit}s"
            raise BadUsage(
                f"The construction faithful chooses among scored edges; got {unit} of"
                f" {cell.labels['method']}."
            )
        stem = self.scores_file(cell).stem

        def kept(name: str, make: Callable[[], list[list[float]]]) -> list[list[float]]:
            return self.worker.kept(
                self._kept(f"{stem}.faithful-{name}.json"),
                make,
                partial(read_small_json, largest=None),
                lambda values, path: write_text(path, json.dumps(values)),
            )

        return faithful_circuits(
            self.model,
            scores,
            self.ablated_validation,
            self.objective,
            profile=self.experiment.profile,
            split=self.validation[0],
            progress=self.worker.progress,
            kept=kept,
        ).series

    def scores_of(self, cell: Cell) -> Scores:
        """The scores of a cell's method, found now or before."""
        file = self.scores_file(cell)
        if not file.is_file():
            self.score(self.method(cell), file, self.parts_file(cell)).save(file)
        return load_scores(file, self.model.graph)

    def score(self, typed: TypedMethod, file: Path, parts_file: Path) -> Scores:
        """The scores that a method finds on the train pairs; a checkpoint stands beside `file`, and
        those of parts of the pairs go to `parts_file`.
        """
        experiment, train = self.experiment, self.ablated(self.train, typed.ablation)
        clock, checkpoint = Clock(), file.with_suffix(".checkpoint")
        clock.add(header_in(checkpoint))
        method, scores, tried = self._best_candidate(typed, train, file, clock)
        progress = self.worker.progress
        if is_mean_of_pairs(method) and parts_of(train, experiment.seed):
            in_parts = score_in_parts(
                method,
                self.model,
                train,
                self.objective,
                seed=experiment.seed,
                progress=progress,
                checkpoint=checkpoint,
            )
            parts_file.parent.mkdir(parents=True, exist_ok=True)
            in_parts.save(parts_file)
            scores = in_parts.scores
        if scores is None:
            scores = method.score(
                self.model, train, self.objective, progress=progress, checkpoint=checkpoint
            )
        about = {
            **scores.provenance,
            **tried,
            **clock.seconds(),
            "task": self.task_name,
            "split": experiment.train_split,
            "ablation": typed.ablation,
        }
        if self.model.replicas is not None:  # Other processes have clocks of their own.
            del about["cpu_seconds"]
        if experiment.pairing != "matched":
            alone = self.worker.folder.data(self.group)["train"]["alone"]
            about |= {"pairing": experiment.pairing, "left out": alone}
        return dataclasses.replace(scores, provenance=about)

    def _best_candidate(
        self, typed: TypedMethod, train: Batch, file: Path, clock: Clock
    ) -> tuple[AnyMethod, Scores | None, dict[str, Any]]:
        """Of a method with candidates the one with the lowest CMD on the validation pairs, its
        scores, and what to say of them: the CMD of all. Else the method itself. Scores of finished
        candidates are kept until all are, with the seconds so far.
        """
        candidates: Sequence[AnyMethod] = getattr(typed.method, "candidates", tuple)()
        if not candidates:
            return typed.method, None, {}
        kept = [
            self.worker.folder.path / self._kept(f"{file.stem}.{number}.safetensors")
            for number in range(len(candidates))
        ]
        if done := [path for path in kept if path.is_file()]:
            clock.add(load_scores(done[-1], self.model.graph).provenance)
        tried: dict[str, float] = {}
        for candidate, path in zip(candidates, kept, strict=True):
            if not path.is_file():
                checkpoint = path.with_suffix(".checkpoint")
                clock.add(header_in(checkpoint))
                scores = candidate.score(
                    self.model,
                    train,
                    self.objective,
                    progress=self.worker.progress,
                    checkpoint=checkpoint,
                )
                about = {**scores.provenance, **clock.seconds()}
                dataclasses.replace(scores, provenance=about).save(path)
            scores = load_scores(path, self.model.graph)
            tried[method_name(candidate)] = magnitude_sweep(
                self.model,
                scores,
                self.ablated_validation,
                self.objective,
                profile=self.experiment.profile,
                greedy=self.experiment.construction == "greedy",
                seed=self.experiment.seed,
                progress=self.worker.progress,
            ).cmd.value
        # An undefined area is never the lowest.
        areas = [math.inf if math.isnan(area) else area for area in tried.values()]
        chosen = areas.index(min(areas))
        scores = load_scores(kept[chosen], self.model.graph)
        for path in kept:
            path.unlink()
        about = {
            "candidate": method_name(candidates[chosen]),
            f"CMD on {self.validation[0]} pairs": tried,
            "settings": settings(typed.method),
        }
        return candidates[chosen], scores, about

    def localized(self, cell: Cell, scores: Scores) -> Record:
        """That scores were found: how many, and in how long."""
        data = self.worker.folder.selections(self.group)
        n_scored = int(scores.scored().sum())
        return Record(
            kind=KIND,
            specs={**self._specs(cell, scores), "metric": Spec(name=self.objective.name)},
            measures=[measure_texts(KIND).measure("scored", n_scored, n=len(self.train))],
            spent=_localized(scores),
            data=data,
            provenance=made_by(self.model, self.experiment.seed, data["train"].hash),
        )

    def measured(self, cell: Cell, scores: Ranked) -> Record:
        """How faithful the circuits of scores are on the test pairs."""
        experiment = self.experiment
        # Before the clock starts: what all cells share is not part of the first one's seconds.
        batch = self.ablated_test
        if not experiment.curve:
            return self._with_metrics(self._bare(cell, scores, batch), scores, batch)
        controls = self.controls
        _ = self.ablated_validation
        begin = time.perf_counter()
        chosen = self.smallest(scores)
        curve = faithfulness_curve(
            self.model,
            scores,
            batch,
            self.objective,
            profile=experiment.profile,
            controls=controls,
            chosen=chosen,
            ability=self.ability,
            label=cell.labels["method"],
            seed=experiment.seed,
            progress=self.worker.progress,
        )
        data = self.selections()
        record = curve.record(
            self._specs(cell, scores),
            made_by(self.model, experiment.seed, data["test"].hash),
            data=data,
        )
        # Of a file of scores the candidates are those of another run.
        if "candidate" in scores.provenance and cell["method"] not in experiment.scores:
            tried = scores.provenance[f"CMD on {self.validation[0]} pairs"]
            rows = [{"candidate": name, "cmd": value} for name, value in tried.items()]
            record = record.changed(
                tables=[*record.tables, Table.of(CANDIDATES, ("candidate",), rows)]
            )
        if SELECTION in scores.provenance:
            mixtures = Table.of(SELECTION, ("fraction",), scores.provenance[SELECTION])
            record = record.changed(tables=[*record.tables, mixtures])
        if stability := self.stability(cell, scores):
            record = record.changed(tables=[*record.tables, stability])
        if experiment.resamples:
            record = self._with_resamples(cell, record, scores)
        # After the record, whose intervals are a good part of the time.
        spent = {
            **_localized(scores),
            "evaluate_seconds": round(time.perf_counter() - begin, 3),
            "peak_memory_gb": round(_peak_memory() / 2**30, 3),
            "shared_controls_s": controls.seconds,
        }
        record = record.changed(spent=spent)
        return self._with_metrics(record, scores, batch)

    def stability(self, cell: Cell, scores: Ranked) -> Table | None:
        """How circuits depend on the train pairs, or on the method's seed; None where parts of the
        pairs were not scored, and of circuits that are grown from the logits.
        """
        experiment, file = self.experiment, self.parts_file(cell)
        grows = isinstance(scores, EdgeScores) and scores.grows
        if isinstance(scores, CircuitSeries) or grows or experiment.construction in SELECTIONS:
            return None
        if experiment.over == "seeds":
            others = [self.resample(cell, scores, number) for number in range(experiment.resamples)]
            return seed_stability(scores, others).table()
        if not file.is_file():
            return None
        return PartScores.load(file, scores).stability(seed=experiment.seed).table()

    def resample(self, cell: Cell, scores: Ranked, number: int) -> Scores:
        """What the cell's method finds on a resample of the train pairs, or with another seed."""
        file, experiment = self.parts_file(cell), self.experiment
        if experiment.over != "seeds" and isinstance(scores, Scores) and file.is_file():
            return PartScores.load(file, scores).resample(number, experiment.seed)
        typed, progress = self.method(cell), self.worker.progress
        method, train = typed.method, self.ablated(self.train, typed.ablation)
        for candidate in getattr(method, "candidates", tuple)():
            if method_name(candidate) == scores.provenance["candidate"]:
                method = candidate
        if experiment.over != "seeds":
            chosen = train.select(resampled_rows(train, number, experiment.seed))
            return method.score(self.model, chosen, self.objective, progress=progress)
        name = self._kept(f"{self.scores_file(cell).stem}.seed-{number}.safetensors")
        kept = self.worker.folder.path / name
        if not kept.is_file():
            checkpoint = kept.with_suffix(".checkpoint")
            kept.parent.mkdir(parents=True, exist_ok=True)
            reseeded(method, number).score(
                self.model, train, self.objective, progress=progress, checkpoint=checkpoint
            ).save(kept)
        return load_scores(kept, self.model.graph)

    def _areas_of_resample(self, cell: Cell, scores: Ranked, number: int) -> dict[str, float]:
        """CPR, CMD and CMA of a resample's circuits, and its AUROC where the circuit is known."""
        experiment, known = self.experiment, self.known.get(self.experiment.ablation)
        resampled_scores = constructed(self.resample(cell, scores, number), experiment.construction)
        curve = faithfulness_curve(
            self.model,
            resampled_scores,
            self.ablated_test,
            self.objective,
            profile=experiment.profile,
            controls=self.controls,
            ability=self.ability,
            seed=experiment.seed,
            progress=self.worker.progress,
        )
        areas = {name: float(getattr(curve, name)) for name in RANGES}
        if known is not None and isinstance(resampled_scores, EdgeScores):
            areas["auroc"] = recovery_of(resampled_scores, known).auroc
        return areas

    def _with_resamples(self, cell: Cell, record: Record, scores: Ranked) -> Record:
        """The record with the areas of resamples of the train pairs, or of other seeds, and
        intervals that hold for the method on these too; as it is where a file was measured.
        """
        if cell["method"] in self.experiment.scores:
            return record
        stem = self.scores_file(cell).stem
        rows = [
            self.worker.kept(
                self._kept(f"{stem}.resample-{number}.json"),
                partial(self._areas_of_resample, cell, scores, number),
                read_json,
                lambda areas, path: write_text(path, json.dumps(areas)),
            )
            for number in range(self.experiment.resamples)
        ]
        table = Table.of(
            RESAMPLES, ("resample",), [{"resample": place, **row} for place, row in enumerate(rows)]
        )
        measures: list[Measure] = []
        for name in RANGES:
            own = record.measure(name)
            if own is not None:
                around = interval_of_method(
                    Interval(own.low, own.high, own.level), table.numbers(name)
                )
                least, most = RANGES[name]
                ends = {
                    "low": max(least, own.value + around.low),
                    "high": min(most, own.value + around.high),
                }
                if math.isnan(around.high):
                    ends = {"low": math.nan, "high": math.nan}
                measures.append(own.model_copy(update={"of": "method", "meaning": "", **ends}))
        return record.changed(
            tables=[*record.tables, table], measures=[*record.measures, *measures]
        )

    def _bare(self, cell: Cell, scores: Ranked, batch: Batch) -> Record:
        """A record of the full and the empty circuit, which metrics add to."""
        experiment, model, graph = self.experiment, self.model, self.model.graph
        begin = time.perf_counter()
        ends = [Circuit.full(graph), Circuit.empty(graph)]
        full, empty = evaluate(model, ends, batch, self.objective, progress=self.worker.progress)
        data = self.selections()
        better = self.objective.direction
        metric = Spec(name=self.objective.name, args={"better": better} if better == "down" else {})
        ranking = Spec(name=cell.labels["method"], args=RankingFacts.of(scores, batch).args())
        return Record(
            kind=KIND,
            specs={**self._specs(cell, scores), "metric": metric, RANKING: ranking},
            measures=self.ability.measures(),
            tables=[self.ability.table()],
            values=Values(
                unit="pair",
                ids=list(batch.ids),
                groups=list(batch.groups),
                columns={"clean": full.tolist(), "empty": empty.tolist()},
            ),
            spent={
                **_localized(scores),
                "evaluate_seconds": round(time.perf_counter() - begin, 3),
                "peak_memory_gb": round(_peak_memory() / 2**30, 3),
            },
            data=data,
            provenance=made_by(model, experiment.seed, data["test"].hash),
        )

    def _with_metrics(self, record: Record, scores: Ranked, batch: Batch) -> Record:
        """The record with what the metrics say of the scores."""
        experiment = self.experiment
        scored = Scored(
            self.model,
            scores,
            batch,
            self.objective,
            self.known.get(experiment.ablation),
            f"The circuit of {self.model_name} is verified for {', '.join(self.known)} ablation,"
            f" not for {experiment.ablation}",
            experiment.seed,
            self.worker.progress,
        )
        record = with_metrics(record, self.metrics, scored)
        # A task's notes on its data, for example that rows repeat each other.
        notes = dict.fromkeys(
            note
            for chosen in record.data.values()
            for name, note in chosen.notes.items()
            if name not in SAID_FIRST
        )
        return record.changed(warnings=[*record.warnings, *notes])

    @cached_property
    def known_found_in(self) -> dict[str, str]:
        """The model of the known circuit of a file, as `found_in`.

        Raises:
            BadUsage: see `found_in`.
        """
        file = self.experiment.known
        if not file or not self.known:
            return {}
        about = self.known[self.experiment.ablation].provenance
        what = f"known circuit {Path(file).name}"
        return found_in(what, about, self.model, transfer=self.experiment.transfer)

    @cached_property
    def circuit_is_known(self) -> bool:
        """Whether the model's circuit is known: a ground truth on its own task, or by a file."""
        return bool(self.known)

    @cached_property
    def known(self) -> Mapping[str, Circuit]:
        """The circuit that is known, by ablation: that of a ground truth by those that it is
        verified for, that of a file by the experiment's.

        Raises:
            BadFile, GraphMismatch: the file holds no circuit, or one of another graph.
        """
        if is_truth(self.model_name) and self.task == self.worker.task(self.model_name):
            try:
                return truth_of(self.model).circuits
            except BadUsage as error:  # The run does without the known circuit.
                warnings.warn(str(error), stacklevel=2)
        file = self.experiment.known or getattr(self.model.hf, "circuit_file", None)
        if not file:
            return {}
        if Path(file).suffix not in ENDINGS:
            return {self.experiment.ablation: Circuit.load(file, self.model.graph)}
        circuit = read_graph_file(file, self.model.graph).circuit
        if circuit is None:
            raise BadFile(f"{file}: no edge is in its circuit.")
        return {self.experiment.ablation: circuit}

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics that were typed but those of a curve, and on a truth those that need one."""
        asked = [
            name
            for name in self.experiment.metrics
            if not (self.experiment.curve and name == "cma")
        ]
        names = (*(OF_TRUTHS if self.circuit_is_known else ()), *asked)
        made = dict.fromkeys(METRICS.make(name) for name in names)
        return tuple(metric for metric in made if self.circuit_is_known or not metric.needs_truth)

    def _specs(self, cell: Cell, scores: Ranked) -> dict[str, Spec]:
        experiment, name, typed = self.experiment, cell.labels["method"], cell["method"]
        finder = None if typed in experiment.scores else self.method(cell)
        counterfactual = experiment.counterfactual or self.task.counterfactual_for(
            self.model.tokenizer
        )
        # What a file was found on is its own to say; this experiment finds nothing.
        found_on = (
            experiment.train_split
            if finder is not None
            else str(scores.provenance.get("split", ""))
        )
        about = {
            "counterfactual": counterfactual,
            "split": experiment.split,
            "limit": experiment.limit,
            "train_split": found_on,
            "train_limit": experiment.train_limit,
            "keep": experiment.keep,
            "ablation": experiment.ablation,
            **(
                {}
                if experiment.construction == "own"
                else {"construction": experiment.construction}
            ),
            **({} if experiment.over == "pairs" else {"over": experiment.over}),
            **settings_of(self.task),
        }
        model = self.model.spec()
        n_edges = self.model.graph.n_edges
        return {
            "model": model.model_copy(update={"args": {**model.args, "n_edges": n_edges}}),
            "task": Spec(name=self.task.name, version=self.task.version, args=about),
            "method": Spec(name=name, args={SCORES_SHA256: path_hash(Path(typed))})
            if finder is None
            else Spec(
                name=name,
                version=finder.method.version,
                args=settings(finder.method)
                | ({} if finder.ablation == experiment.ablation else {"ablation": finder.ablation}),
            ),
        }


def part_scores_file(folder: Path, group: str, scores_file: Path) -> Path:
    """Where a run keeps the scores of parts of the pairs that belong to a file of scores."""
    return folder / "kept" / group / f"{scores_file.stem}.parts.safetensors"


def pair_tokens(model: Model, batch: Batch, row: int) -> PairTokens:
    """A pair of a batch, each token as text; as its id where there is no tokenizer."""

    def texts(tokens: Tensor) -> list[str]:
        ids = [token for token in tokens.tolist() if token != NO_TOKEN]
        if model.tokenizer is None:
            return list(map(str, ids))
        return [str(model.tokenizer.decode([token])) for token in ids]

    real = batch.mask[row]
    return PairTokens(
        id=batch.ids[row],
        clean=texts(batch.clean[row][real]),
        counterfactual=texts(batch.counterfactual[row][real]),
        answers=texts(batch.answers[row]),
        foils=texts(batch.foils[row]),
    )


def forward_seconds(model: Model, batch: Batch) -> float:
    """Seconds that a forward pass takes for one example, among as many as are run at once."""
    budget = token_budget(kept_run_bytes(model.decoder), batch.n_tokens, model.device)
    rows, chunk = next(iter(batch.chunks(budget)))
    took: list[float] = []
    for _ in range(2):  # The first one may also be the first of the process.
        begin = time.perf_counter()
        taken, _ = model.run(chunk)
        taken.final.sum().item()
        took.append(time.perf_counter() - begin)
    return min(took) / len(rows)


def _localized(scores: Ranked) -> dict[str, float]:
    """Return the wall and CPU seconds of scoring; NaN if a file of scores does not state them."""
    about = scores.provenance
    return {
        "localize_seconds": float(about.get("seconds", math.nan)),
        "localize_cpu_seconds": float(about.get("cpu_seconds", math.nan)),
    }


def _peak_memory() -> float:
    """Bytes; NaN on systems that do not count them."""
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)
