"""Features that others found, measured: a cell is one alignment, and nothing is trained.

The cells of one model and task share the examples that the model answers, those of one variable the
labelled pairs. Both are those of `runs.variables` with the same limits and seed, so that numbers of
given features stand beside those of features that were found there. Of several sites the one that
is best on validation pairs is reported, on test pairs.

Variables of IOI are measured in all given heads at once. The coefficients of their causal model are
fitted here, on train examples and on the same heads for everybody: MIB's evaluator takes those of
the submission, by which a submission can choose what it is measured by.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

from mechassay.errors import BadUsage, MechassayError, one_of
from mechassay.interventions.site import ALL
from mechassay.models.model import check_dtype
from mechassay.models.sources import find_source, resolve
from mechassay.records import Record, Spec
from mechassay.runs import options
from mechassay.runs.job import Bench, Cell, Job, cell_name, option
from mechassay.runs.layers import MANY, layers_of
from mechassay.runs.names import made_by, shown_model
from mechassay.runs.variables import VariablesJob
from mechassay.runs.variables_study import VariableStudy
from mechassay.submissions import read_json
from mechassay.tasks.task import PRIVATE, settings_of
from mechassay.variables.given import FEATURES_SHA256, GivenAlignment, given_alignments
from mechassay.variables.head_localization import HeadLocalization, measure_features_in_heads
from mechassay.variables.homes import HOMES
from mechassay.variables.hypothesis import hypotheses
from mechassay.variables.localization import Localization
from mechassay.variables.mib_board import MIB_BOARD
from mechassay.variables.search import measure_features
from mechassay.variables.subsets_of_heads import named_heads
from mechassay.variables.variable_alignment import VariableAlignment


@dataclass(frozen=True)
class AlignmentsJob(Job):
    """Measure features that were found elsewhere: interchange accuracy on test pairs beside
    controls; nothing is trained, and nothing in the folders is executed.

    Attributes:
        alignments: folders, which have to be there as long as the run is gone on with or reported.
            Of a submission to MIB's causal track those folders count that are about the model.
        tasks: none: all that the folders are about.
    """

    alignments: Annotated[
        tuple[str, ...],
        option(
            "Folder of an alignment (alignment.json), or of a submission to MIB's causal track.",
            complete="files",
        ),
    ]
    model: Annotated[str, options.MODEL]
    tasks: Annotated[
        tuple[str, ...],
        option("Only alignments of this task. Repeat for several.", "--task", "-t", first=True),
    ] = ()
    kinds: Annotated[
        tuple[str, ...], option("Kind of counterfactuals; the task's default ones.", "--kind")
    ] = ()
    layers: Annotated[
        str, option("Of IOI: layers whose heads the coefficients are fitted with, such as ::3.")
    ] = "all"
    train_limit: Annotated[int, option("Answered examples to fit coefficients on.", least=1)] = 160
    validation_limit: Annotated[int, option("Answered examples to choose a site on.", least=1)] = 60
    test_limit: Annotated[
        int, option("Answered examples to report on.", "--limit", least=1, first=True)
    ] = 100
    test_split: Annotated[str, option("Split to report on.", "--split")] = "test"
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    seed: Annotated[int, options.SEED] = 0
    private_seed: Annotated[int | None, options.PRIVATE_SEED] = None

    kind: ClassVar[str] = "alignments"
    for_boards: ClassVar[bool] = True

    def words(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `Job.words`."""
        return ("variables", "evaluate", *self.alignments), ("alignments",)

    @cached_property
    def given(self) -> tuple[GivenAlignment, ...]:
        """The alignments that are measured, in the order of their tasks.

        Raises:
            BadFile, BadUsage: see `given_alignments`.
        """
        every = [each for folder in self.alignments for each in given_alignments(folder)]
        wanted = _class_of(self.model) if any(each.model_class for each in every) else ""
        some = [
            each
            for each in every
            if (not self.tasks or each.task in self.tasks)
            and (not wanted or each.model_class in ("", wanted))
        ]
        tasks = list(dict.fromkeys(each.task for each in some))
        return tuple(sorted(some, key=lambda each: tasks.index(each.task)))

    def versions(self, bench: Bench) -> dict[str, Any]:
        """See `Job.versions`: what was measured is a part of the plan."""
        return {"files": {each.typed: each.sha256 for each in self.given}}

    def check(self, bench: Bench) -> None:
        """See `Job.check`."""
        check_dtype(self.dtype)
        one_of("split to report on", self.test_split, ("test", PRIVATE))
        layers_of(self.layers, MANY)
        for task in self.tasks:
            bench.task(task)
        if not self.given:
            raise BadUsage(
                f"None of the alignments is about {self.model}"
                f"{' and ' + ', '.join(self.tasks) if self.tasks else ''}."
            )
        names: dict[tuple[str, ...], str] = {}
        for each in self.given:
            bench.task(each.task)
            each.hypothesis()
            key = each.task, each.variable, each.name
            if key in names:
                raise BadUsage(
                    f"{names[key]} and {each.typed} are both {each.name!r} for {each.variable} of"
                    f" {each.task}: name their methods differently."
                )
            names[key] = each.typed

    def cells(self) -> list[Cell]:
        """See `Job.cells`."""
        return [
            Cell(
                f"{group}/{cell_name(each.variable, each.name)}",
                {
                    "model": shown_model(self.model),
                    "task": each.task,
                    "variable": each.variable,
                    "featurizer": each.name,
                },
                group,
                {"model": self.model, "features": each.typed},
            )
            for each in self.given
            for group in [cell_name(self.model, each.task)]
        ]

    def run(self, cell: Cell, bench: Bench) -> Record:
        """See `Job.run`."""
        begin = time.perf_counter()
        typed = cell.typed["features"]
        (given,) = (each for each in self.given if each.typed == typed)
        read = given.read(self._study(cell, bench, False).model)
        # Sites at all tokens need prompts of equally many, which leaves out others.
        study = self._study(cell, bench, any(site.position == ALL for site in read.fit.sites))
        return self._record(given, read, study, cell, begin)

    def _study(self, cell: Cell, bench: Bench, at_all: bool) -> VariableStudy:
        """What the cells of one task share: those of a search for its variables."""
        task = cell.of["task"]
        search = VariablesJob(
            (self.model,),
            (task,),
            tuple(hypotheses(task)),
            layers=self.layers,
            positions=(ALL,) if at_all else (),
            kinds=self.kinds,
            controls=(),
            train_limit=self.train_limit,
            validation_limit=self.validation_limit,
            test_limit=self.test_limit,
            test_split=self.test_split,
            dtype=self.dtype,
            prepend_bos=self.prepend_bos,
            seed=self.seed,
            private_seed=self.private_seed,
        )
        return bench.shared(f"study {at_all}", lambda: VariableStudy(search, bench, cell))

    def _record(
        self,
        given: GivenAlignment,
        read: VariableAlignment,
        study: VariableStudy,
        cell: Cell,
        begin: float,
    ) -> Record:
        hypothesis, model = given.hypothesis(), study.model
        pairs, chosen = study.pairs(given.variable), study.selections(given.variable)
        about: dict[str, Any] = {"seed": self.seed, "progress": study.progress}
        found: Localization | HeadLocalization
        if hypothesis.model.contrast is None:
            found = measure_features(model, pairs, read.fit, given.name, **about)
        else:
            found = measure_features_in_heads(
                model, pairs, read.fit, given.name, linear=study.linear, **about
            )
        said: dict[str, Any] = {"causal_model": hypothesis.model.name, "variable": given.variable}
        if hypothesis.right is not None and model.name in HOMES:
            said["hypothesis"] = "right" if hypothesis.right else "wrong"
        record = found.record(
            {
                "model": model.spec(),
                "task": Spec(
                    name=study.task.name,
                    version=study.task.version,
                    args={"split": self.test_split, **settings_of(study.task)},
                ),
                "variable": Spec(name=given.variable, args=said),
            },
            made_by(model, self.seed, chosen["test"].hash),
            cell=dict(cell.of),
            realised={"seconds": round(time.perf_counter() - begin, 3)},
            data=chosen,
        )
        more: dict[str, dict[str, str]] = {"method": {FEATURES_SHA256: given.sha256}}
        if hypothesis.model.contrast is not None:
            more["metric"] = {"coefficients of": named_heads(study.heads)}
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
        found = find_source(name)
        location = (resolve(name) if found.kind == "compiled" else found).location
    except MechassayError:
        return ""
    ids = {each.name: kind for kind, each in MIB_BOARD.models.items()}
    config = Path(location) / "config.json"
    if not config.is_file():
        return ids.get(location, "")
    classes = read_json(config).get("architectures") or [""]
    return str(classes[0])
