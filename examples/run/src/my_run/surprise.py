"""How surprised is a model by the right answer? The mean of -log2 p(answer) over pairs, in bits."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from mechassay.results.records import Measure, Values
from mechassay.results.result import RecordContents
from mechassay.runs import options
from mechassay.runs.cells import Cell, Inputs
from mechassay.runs.experiment import Experiment
from mechassay.stats.intervals import percentile_interval, resampled_means


@dataclass(frozen=True)
class SurpriseExperiment(Experiment):
    """Measure how surprised models are by the right answers of tasks, in bits."""

    models: Annotated[tuple[str, ...], options.LOADED_MODELS]
    tasks: Annotated[tuple[str, ...], options.LOADED_TASKS]
    limit: Annotated[int, options.limit("Pairs of each task.", first=True)] = 40
    seed: Annotated[int, options.SEED] = 0

    kind: ClassVar[str] = "surprise"

    def preconditions(self, cell: Cell, inputs: Inputs) -> Iterator[tuple[str, str]]:
        n = len(inputs.pairs["test"])
        if n < 5:
            yield "too few pairs", f"{n} pairs; an interval needs 5"

    def measure(self, cell: Cell, inputs: Inputs) -> RecordContents:
        batch, columns, measures = inputs.model.batch(inputs.pairs["test"]), {}, []
        # The control is the same answer after the counterfactual prompt.
        for of, other in (("result", False), ("control:counterfactual", True)):
            trace, _ = inputs.model.run(batch, counterfactual=other)
            logits = trace.readout(inputs.model.decoder).all().log_softmax(-1)
            bits = -logits.gather(1, batch.answers[:, :1])[:, 0].numpy() / np.log(2)
            draws = resampled_means(bits[None], batch.groups, np.random.default_rng(self.seed))
            ends = percentile_interval(draws[:, 0], n_groups=len(set(batch.groups)))
            number = {"value": bits.mean(), "low": ends.low, "high": ends.high, "n": len(bits)}
            measures.append(Measure(name="surprise", of=of, unit="bits", **number))
            columns[of] = bits.tolist()
        ids, groups = list(batch.ids), list(batch.groups)
        values = Values(unit="pair", ids=ids, groups=groups, columns=columns)
        return {"measures": measures, "values": values}
