"""Causal variables in models, as runs: looking for them, and measuring features of others.

The cells of one model and task share the examples that the model answers, those of one variable
the labelled pairs (`mechassay.variables.inputs`).

In a `VariablesExperiment` a cell is one variable with one featurizer; cells of one variable also
share the accuracies of whole vectors. A ground truth runs on its own task, with all hypotheses
about it, right and wrong ones.

In an `AlignmentsExperiment` a cell is one alignment, and nothing is trained. Examples and pairs are
those of a `VariablesExperiment` with the same limits and seed, so that numbers of given features
stand beside those of features that were found there. Of several sites the one that is best on
validation pairs is reported, on test pairs.

Variables of IOI are measured in all given heads at once. The coefficients of their causal model
are fitted here, on train examples and on the same heads for everybody: MIB's evaluator takes
those of the submission, by which a submission can choose what it is measured by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from mechassay.causal_models.hypothesis import hypotheses
from mechassay.causal_models.true_sites import KNOWN_SITES
from mechassay.errors import BadUsage, MechassayError, one_of
from mechassay.features.das import DAS, BoundlessDAS
from mechassay.features.dbm import DBM
from mechassay.interventions.site import ALL
from mechassay.models.loading import resolve
from mechassay.models.origin import found_in
from mechassay.models.sources import find_source, with_truths
from mechassay.prompts.part_rules import PartRule
from mechassay.results.records import Record, Spec
from mechassay.runs.cells import Cell, cell_name
from mechassay.runs.experiment import Experiment
from mechassay.runs.identities import MODEL, TASK, Source
from mechassay.runs.names import stored_name
from mechassay.runs.options import MANY, layers_of
from mechassay.runs.worker import Worker, made_by
from mechassay.tasks import TASKS
from mechassay.tasks.task import PRIVATE, settings_of
from mechassay.truth.ground_truth import check_tasks, own_task_notes, tasks_of
from mechassay.utils.files import read_json
from mechassay.variables.alignment import VariableAlignment
from mechassay.variables.featurizers import PROFILE_VERSION
from mechassay.variables.inputs import VariableInputs, variables_of
from mechassay.variables.ioi_heads import HeadLocalization, measure_features_in_heads, named_heads
from mechassay.variables.localization import Localization, measure_features
from mechassay.variables.mib_format import MIB_BOARD
from mechassay.variables.mib_submission import FEATURES_SHA256, GivenAlignment, given_alignments
from mechassay.variables.options import (
    PROFILES,
    AlignmentsOptions,
    VariablesOptions,
)


@dataclass(frozen=True)
class VariablesExperiment(VariablesOptions, Experiment):
    """A cell is one variable with one featurizer; see `VariablesOptions` for the fields."""

    for_boards: ClassVar[bool] = True
    grows: ClassVar[tuple[str, ...]] = ("models", "tasks", "variables", "featurizers")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "models", with_truths(self.models))
        object.__setattr__(self, "tasks", TASKS.full_names(self.tasks))

    def check(self, worker: Worker) -> None:
        super().check(worker)
        one_of("split to report on", self.split, ("test", PRIVATE))
        if not self.featurizers:
            raise BadUsage("Name a featurizer: there is nothing to do.")
        layers_of(self.layers, MANY)
        for rule in self.position_rules:
            PartRule.of(rule)
        if self.steps is not None and self.epochs is not None:
            raise BadUsage("A training has --steps or --epochs; got both.")
        if self.lr is not None and not self.lr > 0:
            raise BadUsage(f"The learning rate is above 0; got {self.lr}.")
        if any(k < 1 for k in self.ks):
            raise BadUsage(f"k is 1 or more; got {min(self.ks)}.")
        if "dbm+sae" in self.featurizers and not self.saes:
            raise BadUsage("The featurizer dbm+sae needs --saes, a folder with an SAE a site.")
        check_tasks(self.models, self.tasks)
        for model in self.models:
            for task in tasks_of(model, self.tasks):
                variables_of(self, task)

    def definitions(self) -> dict[str, int]:
        """Return the versions of the profile, and of the finders of the featurizers."""
        versions = {featurizer.name: featurizer.version for featurizer in (DAS, BoundlessDAS, DBM)}
        names = {featurizer.partition("+")[0] for featurizer in self.featurizers}
        definitions = {f"featurizer {name}": versions[name] for name in names if name in versions}
        profile = one_of("profile of featurizers", self.profile, PROFILES)
        return {**definitions, f"profile {profile}": PROFILE_VERSION}

    def notes(self) -> Sequence[str]:
        """Return notes on ground truths, which have tasks of their own."""
        return own_task_notes(self.models, self.tasks)

    def cells(self) -> list[Cell]:
        labels = self.labels()
        return [
            Cell(
                f"{group}/{cell_name(variable, featurizer)}",
                {
                    "model": labels["model", model],
                    "task": labels.get(("task", task), task),
                    "variable": variable,
                    "featurizer": featurizer,
                },
                group,
                {"model": model, "task": task},
            )
            for model in self.models
            for task in tasks_of(model, self.tasks)
            for group in [cell_name(model, task)]
            for variable in variables_of(self, task)
            for featurizer in self.featurizers
        ]

    def sources(self, cell: Cell) -> dict[str, Source]:
        sources = super().sources(cell)
        if cell["featurizer"] != "dbm+sae":  # No other featurizer reads dictionaries.
            sources.pop("saes", None)
        return sources

    def run(self, cell: Cell, worker: Worker) -> Record:
        inputs = worker.shared("inputs", lambda: VariableInputs(self, worker, cell))
        return inputs.record(cell)


@dataclass(frozen=True)
class AlignmentsExperiment(AlignmentsOptions, Experiment):
    """A cell is one alignment, and nothing is trained; see `AlignmentsOptions` for the fields."""

    for_boards: ClassVar[bool] = True

    def words(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return ("variables", "evaluate", *self.alignments), ("alignments",)

    @cached_property
    def given(self) -> tuple[GivenAlignment, ...]:
        """The alignments that are measured, in the order of their tasks.

        Raises:
            BadFile, BadUsage: see `given_alignments`.
        """
        every = [
            alignment for folder in self.alignments for alignment in self._about_the_model(folder)
        ]
        wanted = _class_of(self.model) if any(alignment.model_class for alignment in every) else ""
        some = [
            alignment
            for alignment in every
            if (not self.tasks or alignment.task in self.tasks)
            and (not wanted or alignment.model_class in ("", wanted))
        ]
        tasks = list(dict.fromkeys(alignment.task for alignment in some))
        return tuple(sorted(some, key=lambda alignment: tasks.index(alignment.task)))

    def _about_the_model(self, folder: str) -> list[GivenAlignment]:
        """The alignments of a folder; of a run of several models those of this one."""
        every = given_alignments(folder)
        if len({alignment.model for alignment in every}) < 2:
            return every
        name = stored_name(self.model)
        return [alignment for alignment in every if alignment.model == name]

    def sources(self, cell: Cell) -> dict[str, Source]:
        own = {role: own for role, own in super().sources(cell).items() if role in (MODEL, TASK)}
        (digest,) = (x.sha256 for x in self.given if x.typed == cell["features"])
        return {**own, "alignment": Source("alignment", cell["features"], digest=digest[:16])}

    def check(self, worker: Worker) -> None:
        super().check(worker)
        one_of("split to report on", self.split, ("test", PRIVATE))
        layers_of(self.layers, MANY)
        for rule in self.position_rules:
            PartRule.of(rule)
        if not self.given:
            raise BadUsage(
                f"None of the alignments is about {self.model}"
                f"{' and ' + ', '.join(self.tasks) if self.tasks else ''}."
            )
        names: dict[tuple[str, ...], str] = {}
        for alignment in self.given:
            worker.task(alignment.task)
            alignment.hypothesis()
            key = alignment.task, alignment.variable, alignment.name
            if key in names:
                raise BadUsage(
                    f"{names[key]} and {alignment.typed} are both {alignment.name!r} for"
                    f" {alignment.variable} of {alignment.task}: name their methods differently."
                )
            names[key] = alignment.typed

    def cells(self) -> list[Cell]:
        labels = self.labels()
        return [
            Cell(
                f"{group}/{cell_name(alignment.variable, alignment.name)}",
                {
                    "model": labels["model", self.model],
                    "task": alignment.task,
                    "variable": alignment.variable,
                    "featurizer": alignment.name,
                },
                group,
                {"model": self.model, "features": alignment.typed},
            )
            for alignment in self.given
            for group in [cell_name(self.model, alignment.task)]
        ]

    def run(self, cell: Cell, worker: Worker) -> Record:
        typed = cell["features"]
        (given,) = (alignment for alignment in self.given if alignment.typed == typed)
        model = self._inputs(cell, worker, False).model
        read = given.read(model)
        what = f"features {cell.labels['featurizer']}"
        elsewhere = found_in(what, read.fit.provenance, model, transfer=self.transfer)
        # Sites at all tokens need prompts of equally many, which leaves out others.
        inputs = self._inputs(cell, worker, any(site.position == ALL for site in read.fit.sites))
        return self._record(given, read, inputs, cell).changed(found_in=elsewhere)

    def _inputs(self, cell: Cell, worker: Worker, at_all: bool) -> VariableInputs:
        """Return the inputs of one task, as a search for its variables loads them."""
        task = cell.labels["task"]
        search = VariablesExperiment(
            (self.model,),
            (task,),
            tuple(hypotheses(task)),
            layers=self.layers,
            positions=(ALL,) if at_all else (),
            position_rules=self.position_rules,
            kinds=self.kinds,
            controls=(),
            train_limit=self.train_limit,
            validation_limit=self.validation_limit,
            limit=self.limit,
            split=self.split,
            dtype=self.dtype,
            prepend_bos=self.prepend_bos,
            seed=self.seed,
            private_seed=self.private_seed,
        )
        return worker.shared(f"inputs {at_all}", lambda: VariableInputs(search, worker, cell))

    def _record(
        self,
        given: GivenAlignment,
        read: VariableAlignment,
        inputs: VariableInputs,
        cell: Cell,
    ) -> Record:
        hypothesis, model = given.hypothesis(), inputs.model
        pairs, chosen = inputs.pairs(given.variable), inputs.selections(given.variable)
        about: dict[str, Any] = {"seed": self.seed, "progress": inputs.progress}
        localization: Localization | HeadLocalization
        if hypothesis.model.contrast is None:
            beside = given.sites_beside(read.fit.sites)
            localization = measure_features(
                model, pairs, read.fit, given.name, beside=beside, **about
            )
        else:
            localization = measure_features_in_heads(
                model, pairs, read.fit, given.name, linear=inputs.linear, **about
            )
        names: dict[str, Any] = {"causal_model": hypothesis.model.name, "variable": given.variable}
        if hypothesis.right is not None and model.name in KNOWN_SITES:
            names["hypothesis"] = "right" if hypothesis.right else "wrong"
        record = localization.record(
            {
                "model": model.spec(),
                "task": Spec(
                    name=inputs.task.name,
                    version=inputs.task.version,
                    args={"split": self.split, **settings_of(inputs.task)},
                ),
                "variable": Spec(name=given.variable, args=names),
            },
            made_by(model, self.seed, chosen["test"].hash),
            data=chosen,
        )
        more: dict[str, dict[str, str]] = {"method": {FEATURES_SHA256: given.sha256}}
        if hypothesis.model.contrast is not None:
            more["metric"] = {"coefficients of": named_heads(inputs.heads)}
        specs = {
            role: record.specs[role].model_copy(
                update={"args": {**record.specs[role].args, **args}}
            )
            for role, args in more.items()
        }
        return record.changed(**specs)


def _class_of(name: str) -> str:
    """The class of a model as MIB's track names it; "" where only loading it would tell."""
    try:
        source = find_source(name)
        location = (resolve(name) if source.kind == "compiled" else source).location
    except MechassayError:
        return ""
    ids = {model.name: kind for kind, model in MIB_BOARD.models.items()}
    config = Path(location) / "config.json"
    if not config.is_file():
        return ids.get(location, "")
    classes = read_json(config).get("architectures") or [""]
    return str(classes[0])
