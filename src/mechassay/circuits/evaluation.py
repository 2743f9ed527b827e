"""The objective of every example under several runs of a model that share each example's traces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float

from mechassay.errors import NonFinite
from mechassay.models.decoder import Readout
from mechassay.models.memory import out_of_memory_is_an_error, token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.models.trace import Contrast
from mechassay.objectives import Objective
from mechassay.pairs import Batch
from mechassay.progress import Progress


def objective_per_example(
    model: Model,
    batch: Batch,
    objective: Objective,
    runs: Sequence[Callable[[Contrast], Readout]],
    *,
    progress: Progress,
) -> Float[np.ndarray, "runs n"]:
    """The objective of each example (columns) under each of `runs` (rows), in fp64.

    Raises:
        NonFinite: an example's value is NaN or infinite.
        OutOfMemory: one example does not fit.
    """
    values = np.full((len(runs), len(batch)), np.nan)
    budget = token_budget(trace_bytes(model.decoder), batch.n_tokens, model.device)
    with (
        progress.track(f"running {len(runs)} circuits", len(batch) * len(runs)) as advance,
        out_of_memory_is_an_error("Evaluating circuits"),
    ):
        for rows, chunk in batch.chunks(budget):
            contrast = Contrast.run(model.decoder, chunk)
            clean = contrast.clean.readout(model.decoder) if objective.needs_clean else None
            with torch.no_grad():
                for number, run in enumerate(runs):
                    result = objective(run(contrast), chunk, clean)
                    values[number, rows] = result.double().cpu().numpy()
                    advance(len(rows))
    if not np.isfinite(values).all():
        number, row = np.argwhere(~np.isfinite(values))[0]
        raise NonFinite(
            f"{objective.name} of example {batch.ids[row]} is {values[number, row]} in circuit"
            f" {number}: the activations overflow or hold NaN."
        )
    return values
