"""A run for causal variables: what the cells of one model and task share.

Training keeps what it has done in `training/`, so that a killed run goes on in the middle of a
stack; the features of the chosen site stay in `alignments/`, as a folder that
`VariableAlignment.load` reads.

A variable whose causal model gives a logit difference, as in IOI, is looked for in subsets of
heads instead. The heads, and the coefficients of the causal model, are found on the train
examples; both stay in `heads/`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mechassay.causal_models.hypothesis import Hypothesis, defaults_of, distinguish, hypotheses
from mechassay.causal_models.ioi import LogitDifference
from mechassay.causal_models.true_sites import KNOWN_SITES
from mechassay.errors import MechassayError, one_of
from mechassay.features.probes import FullVector
from mechassay.features.sae import SAE
from mechassay.features.sae_releases import sae_of_site
from mechassay.interventions.names import PARTS
from mechassay.interventions.site import ALL, Site, load_site, sites
from mechassay.models.model import Model, untrained
from mechassay.models.origin import found_in
from mechassay.prompts.pairs import Examples
from mechassay.results.records import Record, Selection, Spec
from mechassay.runs.cells import Cell
from mechassay.runs.options import layers_of
from mechassay.runs.worker import Worker, made_by
from mechassay.tasks import load_task
from mechassay.tasks.task import PRIVATE, PUBLIC_SPLITS, Task, settings_of
from mechassay.utils.display import Progress
from mechassay.utils.files import write_text
from mechassay.variables.alignment import ALIGNMENTS, VariableAlignment
from mechassay.variables.data import VariablePairs, answered_examples, variable_pairs
from mechassay.variables.featurizers import (
    FeaturizerSettings,
    featurizer_settings,
    n_features_of,
)
from mechassay.variables.interchange_accuracy import InterchangeAccuracy, accuracy
from mechassay.variables.ioi_heads import (
    S_INHIBITION,
    HeadLocalization,
    HeadSubsets,
    head_subsets,
    localize_in_heads,
)
from mechassay.variables.localization import Localization, localize, score_of
from mechassay.variables.logit_difference import inhibition_heads, linear_difference
from mechassay.variables.options import FEATURIZERS, Featurizers, VariablesOptions

"""Of SAEs: a folder, or a file of arrays."""


def variables_of(options: VariablesOptions, task: str) -> dict[str, Hypothesis]:
    """The hypotheses of a task that a run looks at, by name.

    Raises:
        UnknownName: the task has no causal model, or that no such variable.
    """
    known = hypotheses(load_task(task).name)
    names = options.variables or tuple(
        name for name, hypothesis in known.items() if hypothesis.by_default
    )
    return {name: known[one_of(f"variable of {task}", name, known)] for name in names}


def training_settings(options: VariablesOptions, task: str, family: str) -> FeaturizerSettings:
    """Return the training settings of the profile; options that are given replace them."""
    settings = featurizer_settings(options.profile, task, family)
    if options.lr is not None:
        settings = replace(settings, lr=options.lr)
    if options.epochs is not None:
        settings = replace(settings, epochs=options.epochs, least_steps=1)
    return settings if options.steps is None else replace(settings, steps=options.steps)


@dataclass
class VariableInputs:
    """The inputs that the cells of one model and task share.

    Attributes:
        experiment, worker: of the run.
        cell: any of the cells.
        elsewhere: the models in which dictionaries were found, if these are other models or are not
            known.
    """

    experiment: VariablesOptions
    worker: Worker
    cell: Cell
    elsewhere: dict[str, str] = field(default_factory=dict[str, str], repr=False)
    _made: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)

    def _once(self, name: str, make: Any) -> Any:
        """What is made once; an error is kept too, as every cell would run into it again."""
        if name not in self._made:
            try:
                self._made[name] = make()
            except MechassayError as error:
                self._made[name] = error
        if isinstance(self._made[name], MechassayError):
            raise self._made[name]
        return self._made[name]

    @property
    def progress(self) -> Progress:
        return self.worker.progress

    @property
    def model(self) -> Model:
        experiment = self.experiment
        name = self.cell["model"]
        return self.worker.model(name, dtype=experiment.dtype, prepend_bos=experiment.prepend_bos)

    @property
    def task(self) -> Task:
        return self.worker.task(self.cell["task"])

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of counterfactuals; none: all there are."""
        return self.experiment.kinds or defaults_of(self.task.name).kinds

    @property
    def examples(self) -> dict[str, Examples]:
        """What the model answers, of every split; the private one takes the place of test."""
        return self._once("examples", self._examples)

    def _examples(self) -> dict[str, Examples]:
        experiment = self.experiment
        sizes = (experiment.train_limit, experiment.validation_limit, experiment.limit)
        splits = (*PUBLIC_SPLITS[:2], experiment.split)
        return {
            name: answered_examples(
                self.model,
                self.task,
                split,
                size,
                self.kinds,
                position_rules=experiment.position_rules,
                seed=experiment.seed,
                private_seed=experiment.private_seed if split == PRIVATE else None,
                progress=self.progress,
            )
            for name, split, size in zip(PUBLIC_SPLITS, splits, sizes, strict=True)
        }

    def pairs(self, variable: str) -> VariablePairs:
        """The labelled pairs of a variable; the counterfactuals must be able to tell it."""
        return self._once(f"pairs {variable}", lambda: self._pairs(variable))

    def _pairs(self, variable: str) -> VariablePairs:
        hypothesis, examples = self.hypothesis(variable), self.examples
        causal, of_heads = hypothesis.model, hypothesis.model.contrast is not None
        if of_heads:
            causal = self.linear.model
        of = causal, hypothesis.variable
        distinguish(of, (causal, None), examples["test"], list(self.kinds) or None)
        return variable_pairs(
            self.model,
            *of,
            examples,
            self.kinds,
            balanced=defaults_of(self.task.name).balanced,
            equal_lengths=of_heads or ALL in self.positions,
            progress=self.progress,
        )

    def hypothesis(self, variable: str) -> Hypothesis:
        """The causal model and its variable that a name stands for."""
        return variables_of(self.experiment, self.cell["task"])[variable]

    @property
    def positions(self) -> tuple[str, ...]:
        """Of the sites."""
        return self.experiment.positions or defaults_of(self.task.name).positions

    @property
    def sites(self) -> tuple[Site, ...]:
        """Where the variables are looked for."""
        experiment, model = self.experiment, self.model
        layers = layers_of(experiment.layers, model.graph.n_layers)
        part = one_of("part of a site", experiment.part, PARTS)
        return sites(model, positions=self.positions, layers=layers, parts=part)

    def full(self, variable: str) -> InterchangeAccuracy:
        """The accuracies of whole vectors on test pairs."""
        return self._once(f"full {variable}", lambda: self._full(variable))

    def _full(self, variable: str) -> InterchangeAccuracy:
        pairs = self.pairs(variable)
        fit = FullVector().fit(self.model, pairs.batches["test"], self.sites)
        test = pairs.labels["test"]
        return accuracy(fit, test, controls=(), seed=self.experiment.seed, progress=self.progress)

    def trained_sites(self, variable: str) -> tuple[Site, ...]:
        """Where featurizers of a variable are trained: everywhere, or where whole vectors do best
        on the validation pairs whose answer changes. On the others an exchange without any effect
        is right.
        """
        return self._once(f"trained {variable}", lambda: self._trained_sites(variable))

    def _trained_sites(self, variable: str) -> tuple[Site, ...]:
        n, places = self.experiment.train_at, self.sites
        if n is None or n >= len(places):
            return places
        pairs = self.pairs(variable)
        labels = pairs.labels["validation"]
        fit = FullVector().fit(self.model, pairs.batches["validation"], places)
        whole = accuracy(
            fit, labels, controls=(), seed=self.experiment.seed, progress=self.progress
        )
        changed = labels.changed if labels.changed.any() else None
        best = sorted(places, key=lambda site: score_of(whole, site, changed), reverse=True)[:n]
        return tuple(site for site in places if site in best)

    @property
    def untrained(self) -> Model | None:
        """The model with random weights, where that control is asked for."""
        if "untrained" not in self.experiment.controls:
            return None
        return self._once("untrained", lambda: untrained(self.model, self.experiment.seed))

    @property
    def settings(self) -> FeaturizerSettings:
        """Of trainings."""
        return training_settings(self.experiment, self.task.name, self.model.family)

    def record(self, cell: Cell) -> Record:
        """The record of a cell."""
        experiment, variable = self.experiment, cell.labels["variable"]
        featurizer = one_of("featurizer", cell.labels["featurizer"], FEATURIZERS)
        if self.hypothesis(variable).model.contrast is not None:
            localization = self._in_heads(cell, variable, featurizer)
        else:
            localization = self._at_sites(cell, variable, featurizer)
        hypothesis, model = self.hypothesis(variable), self.model
        about: dict[str, Any] = {
            "causal_model": hypothesis.model.name,
            "variable": str(hypothesis.variable),
        }
        # Models that were built by hand go another way than the trained ones.
        if hypothesis.right is not None and model.name in KNOWN_SITES:
            about["hypothesis"] = "right" if hypothesis.right else "wrong"
        method = Spec(name=featurizer)
        in_heads = isinstance(localization, HeadLocalization)
        if experiment.train_at is not None and featurizer != "full-vector" and not in_heads:
            method = Spec(name=featurizer, args={"train_at": experiment.train_at})
        chosen = self.selections(variable)
        VariableAlignment.of(
            localization.chosen_fit,
            self.task.name,
            str(hypothesis.variable),
            causal_model=hypothesis.model.name,
            method=featurizer,
            coefficients=localization.linear
            if isinstance(localization, HeadLocalization)
            else None,
        ).save(self.worker.folder.path / ALIGNMENTS / cell.name)
        return localization.record(
            {
                "model": model.spec(),
                "task": Spec(
                    name=self.task.name,
                    version=self.task.version,
                    args={"split": experiment.split, **settings_of(self.task)},
                ),
                "variable": Spec(name=variable, args=about),
                "method": method,
            },
            made_by(model, experiment.seed, chosen["test"].hash),
            data=chosen,
            found_in=dict(self.elsewhere) if featurizer == "dbm+sae" else {},
        )

    def _saes(self, places: Sequence[Site]) -> dict[Site, SAE]:
        """Return the dictionary of each site, whose model is compared with the run's.

        Raises:
            BadUsage: a dictionary of another model, and no transfer is asked for.
        """
        source, transfer = self.experiment.saes, self.experiment.transfer
        saes = {site: sae_of_site(source, site) for site in places}
        for site, sae in saes.items():
            what = f"dictionary {Path(source).name} of {site}"
            self.elsewhere |= found_in(what, sae.provenance, self.model, transfer=transfer)
        return saes

    def _at_sites(self, cell: Cell, variable: str, featurizer: Featurizers) -> Localization:
        experiment, model = self.experiment, self.model
        pairs = self.pairs(variable)
        places = self.sites if featurizer == "full-vector" else self.trained_sites(variable)
        ks = n_features_of(
            experiment.profile, self.task.name, variable, places[0].width(model.decoder)
        )
        return localize(
            model,
            pairs,
            places,
            featurizer,
            settings=self.settings,
            ks=experiment.ks or ks,
            saes=self._saes(places) if featurizer == "dbm+sae" else None,
            untrained=self.untrained,
            random_variable="random-variable" in experiment.controls,
            full=self.full(variable),
            seed=experiment.seed,
            folder=self.worker.folder.path / "training" / cell.name,
            progress=self.progress,
        )

    def _in_heads(self, cell: Cell, variable: str, featurizer: Featurizers) -> HeadLocalization:
        experiment, model, pairs = self.experiment, self.model, self.pairs(variable)
        width = self.heads[0].width(model.decoder)
        ks = experiment.ks or n_features_of(experiment.profile, self.task.name, variable, width)
        return localize_in_heads(
            model,
            pairs,
            self.heads,
            featurizer,
            settings=self.settings,
            ks=ks,
            subsets=self._once(f"subsets {variable}", lambda: self._subsets(variable)),
            linear=self.linear,
            seed=experiment.seed,
            folder=self.worker.folder.path / "training" / cell.name,
            progress=self.progress,
        )

    def _subsets(self, variable: str) -> HeadSubsets:
        batches = self.pairs(variable).batches
        return head_subsets(
            self.model,
            self.heads,
            train=batches["train"],
            validation=batches["validation"],
            test=batches["test"],
            variable=variable,
            seed=self.experiment.seed,
            progress=self.progress,
        )

    @property
    def heads(self) -> tuple[Site, ...]:
        """The heads of IOI: those of the literature in GPT-2 small, else those that are found."""
        return self._once("heads", self._heads)

    def _heads(self) -> tuple[Site, ...]:
        if self.model.name.rpartition("/")[2] == "gpt2":
            return tuple(map(load_site, S_INHIBITION))
        layers = layers_of(self.experiment.layers, self.model.graph.n_layers)
        examples = self.examples["train"]
        heads = inhibition_heads(
            self.model, examples, layers=layers, seed=self.experiment.seed, progress=self.progress
        )
        folder = self.worker.folder.path / "heads"
        columns = {name: values for name, values in heads.columns().items()}
        write_text(folder / f"{self.cell.inputs}.json", json.dumps(columns) + "\n")
        return heads.chosen

    @property
    def linear(self) -> LogitDifference:
        """The linear logit difference of the heads, fitted on all train examples."""
        return self._once("linear", self._linear)

    def _linear(self) -> LogitDifference:
        fit = linear_difference(
            self.model, self.examples["train"], self.heads, progress=self.progress
        )
        fit.save(self.worker.folder.path / "heads" / f"{self.cell.inputs}-linear.json")
        return fit

    def selections(self, variable: str) -> dict[str, Selection]:
        """Return the selected and the dropped pairs of each split for a variable."""
        pairs = self.pairs(variable)
        return {
            name: Selection(
                hash=pairs.batches[name].content_hash,
                task=self.task.name,
                version=self.task.version,
                split=self.experiment.split if name == "test" else name,
                kept=len(labels),
                dropped=dict(labels.dropped),
                seed=None
                if self.experiment.split == PRIVATE and name == "test"
                else self.experiment.seed,
                counts={"label changes": int(labels.changed.sum())},
            )
            for name, labels in pairs.labels.items()
        }
