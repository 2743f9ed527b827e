"""Many plans of interventions on one batch, each alone: what is read of their final streams.

A plan is an intervention at one site, or at several sites together. Bases and sources are run once
for all plans, and each plan is then run from its first changed layer and column on, in stacks with
the others (`base_run`). Rows have the base run's results to the last bit where a plan leaves their
values as they are, and where nothing reads what it changes, as in the last layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.interchange import InterchangeBatch
from mechassay.interventions.base_run import BaseRun
from mechassay.interventions.intervene import joint_branch, source_values, watched
from mechassay.interventions.intervention import Intervention
from mechassay.interventions.placed import Placed, place_together
from mechassay.interventions.site import Site
from mechassay.models.model import Model
from mechassay.progress import Advance

Plan = dict[Site, Intervention]
"""What is done in one run."""
Read = Callable[[Float[Tensor, "m r d_model"], Int[Tensor, "m"]], Float[Tensor, "m t"]]
"""What is computed of the final streams of some rows."""


@dataclass(frozen=True, eq=False)
class PlanRuns:
    """Final streams of n rows at r columns each, without an intervention and under each of k plans.

    Attributes:
        rows: of each plan, the rows that were run.
        finals: their final streams.
        changed: rows in which a plan changed a value.
    """

    base: Float[Tensor, "n r d_model"]
    rows: tuple[Int[Tensor, "_"], ...]
    finals: tuple[Float[Tensor, "_ r d_model"], ...]
    changed: Bool[Tensor, "k n"]

    @staticmethod
    def of(
        model: Model,
        batch: InterchangeBatch,
        plans: Sequence[Plan],
        columns: Int[Tensor, "n r"],
        advance: Advance,
    ) -> PlanRuns:
        """Run all plans.

        Args:
            batch: on the device of the model, see `Model.interchanges`.
            columns: of each row, those at which final streams are read.
            advance: told how many rows are done.

        Raises:
            UnknownName, BadPairs, NonFinite, OutOfMemory: see `intervene`.
        """
        run = BaseRun.of(model, batch.base, batch.base_mask)
        read = run.n_columns - int(columns.min())
        at = columns - columns.min()
        # Plans of the same sites have the same tokens and sources.
        keys = [
            tuple((site, how.needs_source, how.keeps_equal) for site, how in plan.items())
            for plan in plans
        ]
        placed: dict[tuple[object, ...], list[Placed]] = {}
        for key, plan in zip(keys, plans, strict=True):
            if key not in placed:
                placed[key] = place_together(batch, plan)
        found = iter(
            source_values(model, batch, [each for several in placed.values() for each in several])
        )
        sources = {key: list(islice(found, len(several))) for key, several in placed.items()}
        changed = torch.zeros((len(plans), len(batch)), dtype=torch.bool, device=model.device)
        branches = [
            joint_branch(
                placed[key], watched(placed[key], list(plan.values()), sources[key], changed[i])
            )
            for i, (key, plan) in enumerate(zip(keys, plans, strict=True))
        ]
        there = [each for each in branches if each is not None]
        advance(len(plans) * len(batch) - sum(len(each.prompts) for each in there))
        streams = iter(run.run(there, read=read, advance=advance))
        rows = [at.new_zeros(0) if each is None else each.prompts for each in branches]
        base = _picked(run.final(read), at)
        finals = [base[:0] if not len(some) else _picked(next(streams), at[some]) for some in rows]
        return PlanRuns(base, tuple(rows), tuple(finals), changed)

    def results(self, read: Read) -> Float[Tensor, "base_and_plans n t"]:
        """What is computed of the streams, without an intervention and then under each plan."""
        n = len(self.base)
        own = read(self.base, torch.arange(n, device=self.base.device))
        out = own[None].repeat(1 + len(self.rows), 1, 1)
        if not self.rows:
            return out
        rows = torch.cat(self.rows)
        sizes = torch.tensor([len(some) for some in self.rows])
        plan = torch.repeat_interleave(torch.arange(len(sizes)), sizes).to(rows.device)
        finals = torch.cat(self.finals)
        kept = self.changed[plan, rows] & (finals != self.base[rows]).any(dim=(1, 2))
        if bool(kept.any()):
            out[1 + plan[kept], rows[kept]] = read(finals[kept], rows[kept])
        return out


def _picked(
    streams: Float[Tensor, "m read d_model"], at: Int[Tensor, "m r"]
) -> Float[Tensor, "m r d_model"]:
    return streams[torch.arange(len(at), device=at.device)[:, None], at]
