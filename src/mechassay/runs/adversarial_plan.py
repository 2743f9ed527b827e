"""What an adversarial run runs: the plan that is stored with its results,
and what no plan may have.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from typing import Any

from mechassay.adversarial.controls import SIDE
from mechassay.adversarial.fields import parse_same, parse_where
from mechassay.adversarial.statistics import LEAST_EFFECT, parse_map
from mechassay.circuits.ablation import ABLATIONS
from mechassay.circuits.pairing import check_pairing
from mechassay.circuits.spec import CircuitSpec
from mechassay.errors import BadUsage, UnknownName
from mechassay.objectives import load_objective
from mechassay.runs.names import task_named
from mechassay.stats.bounds import check_share
from mechassay.stats.design import DESIGN_KINDS
from mechassay.stats.summary import PERCENTILES
from mechassay.tasks.task import Task, settings_of

ABOVE = (0.01, 0.1, 1.0, 5.0)
PAIRED = "counterfactual"
"""The one ablation that a corrupted prompt has a part in here."""


@dataclass(frozen=True)
class AdversarialRun:
    """What to run. The fields are the plan that is stored with the results.

    Attributes:
        task: by a name that commands take, or the task itself. The plan has its name, version and
            settings.
        circuits: as they are typed, see `circuits.spec`.
        design: grid, matched or independent.
        n_clean, n_corrupted: prompts of each pool; only a grid's may differ.
        same: fields that both prompts of a grid's pair agree in; where: "FIELD=VALUE" of all
            prompts (`adversarial.fields`).
        enumerate_all: take every matched pair of the split instead of a sample. objective, pairing:
        what methods look for circuits by, and on which pairs (`circuits.pairing`);
            the task's own objective if None.
        percentiles: of the table.
        above: thresholds in nats whose exceedance is asked for.
        worst: how many of the worst pairs to show.
        controls: prompts of each pool that controls are run on; of single pairs its square.
        n_resamples, n_permutations: of the bootstrap of a grid, and of the tests of labels.
        heat_maps: pairs of fields, "place,object", whose heat map is always drawn.
        least_effect: what a label must be worse by to be called so, as a share of the empty
            circuit's 99th percentile.
    """

    model: str
    task: str | Task
    circuits: tuple[str, ...]
    design: str = "grid"
    n_clean: int = 1000
    n_corrupted: int = 1000
    same: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    enumerate_all: bool = False
    split: str = "test"
    counterfactual: str | None = None
    ablation: str = PAIRED
    train_limit: int = 100
    objective: str | None = None
    pairing: str = "matched"
    dtype: str = "float32"
    prepend_bos: bool = False
    seed: int = 0
    percentiles: tuple[float, ...] = PERCENTILES
    above: tuple[float, ...] = ABOVE
    worst: int = 10
    controls: int = SIDE
    n_resamples: int = 1000
    n_permutations: int = 2000
    heat_maps: tuple[str, ...] = ()
    least_effect: float = LEAST_EFFECT

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
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        plain = {
            key: list(value) if isinstance(value, tuple) else value for key, value in values.items()
        }
        plain["task"] = task_plan(self.load_task())
        files = {text: CircuitSpec.parse(text).file_hash for text in self.circuits}
        return {**plain, "files": {text: digest for text, digest in files.items() if digest}}

    def load_task(self) -> Task:
        """The task itself; see `task_named` for errors."""
        return task_named(self.task) if isinstance(self.task, str) else self.task

    def check(self) -> None:
        """Refuse what cannot be run; see `runs.adversarial.AdversarialJob`."""
        if self.design not in DESIGN_KINDS:
            raise UnknownName("design", self.design, DESIGN_KINDS)
        if self.ablation not in ABLATIONS:
            raise UnknownName("ablation", self.ablation, ABLATIONS)
        if self.ablation == "resample":
            raise BadUsage(
                "Resample ablation pairs each prompt with another clean one: take --ablation"
                " counterfactual with --design independent."
            )
        if not self.circuits or len(set(self.circuits)) < len(self.circuits):
            raise BadUsage(
                f"Give one or more different circuits; got {', '.join(self.circuits) or 'none'}."
            )
        self._check_numbers()
        self._check_pairs()
        self._check_discovery()

    def _check_numbers(self) -> None:
        """Refuse numbers out of their range."""
        for share in self.percentiles:
            check_share("A percentile", share)
        for name in ("percentiles", "above"):
            numbers = getattr(self, name)
            if len(set(numbers)) < len(numbers):
                raise BadUsage(
                    f"Give each of {name} once; got"
                    f" {', '.join(f'{number:g}' for number in numbers)}."
                )
        for threshold in self.above:
            if not (math.isfinite(threshold) and threshold >= 0):
                raise BadUsage(f"A threshold must be a number of nats, 0 or more; got {threshold}.")
        self._check_labels()
        least = {"worst": 0, "n_resamples": 1, "n_permutations": 1, "train_limit": 1, "controls": 1}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise BadUsage(f"{name} must be {number} or more; got {getattr(self, name)}.")

    def _check_pairs(self) -> None:
        """Refuse pairs that a design does not have."""
        if self.design != "grid" and self.n_clean != self.n_corrupted:
            raise BadUsage(
                f"{self.design.capitalize()} pairs need pools of one size; got {self.n_clean} and"
                f" {self.n_corrupted} prompts."
            )
        if self.enumerate_all and not (self.design == "matched" and self.paired):
            raise BadUsage(
                "Only matched pairs with counterfactual ablation can be enumerated: --design"
                " matched."
            )
        parse_where(self.where)
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


def task_plan(task: Task) -> dict[str, Any]:
    """What says which task it is, as plain values: name, version and settings."""
    return {
        "name": task.name,
        "version": task.version,
        "settings": json.loads(json.dumps(settings_of(task), default=str)),
    }
