"""The plan of an adversarial run, and what no plan may have."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from mechassay.adversarial.controls import SIDE
from mechassay.adversarial.fields import parse_same, parse_where
from mechassay.adversarial.statistics import LEAST_EFFECT, parse_map
from mechassay.circuits.ablation import ABLATIONS
from mechassay.circuits.pairing import check_pairing
from mechassay.circuits.spec import CircuitSpec
from mechassay.errors import BadUsage, one_of
from mechassay.models.model import check_dtype
from mechassay.objectives import load_objective
from mechassay.runs import options
from mechassay.runs.job import option
from mechassay.stats.design import DESIGN_KINDS, DesignKind
from mechassay.tasks.task import Task, settings_of

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
        circuits: as they are typed, see `circuits.spec`.
        design: grid, matched or independent.
        n_clean, n_corrupted: prompts of each pool; only a grid's may differ.
        same: fields that both prompts of a grid's pair agree in; where: "FIELD=VALUE" of all
            prompts (`adversarial.fields`).
        enumerate_all: take every matched pair of the split instead of a sample.
        objective, pairing: what methods look for circuits by, and on which pairs
            (`circuits.pairing`); the task's own objective if None.
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
