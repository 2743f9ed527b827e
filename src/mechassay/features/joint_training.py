"""One training for sites that are changed together, in one run: each has parameters of its own.

A step of the parameters p_1..p_S, with the sites in the order of the forward pass, on the rows of
one batch:

    run the bases; at site i the current value v_i becomes change(v_i, source_i; p_i)
    L      = mean over rows of the loss at the end of that run
    p_i    <- one step of Adam(W) along the gradient of L + the sum of penalties

v_i is what the changes at earlier sites have left there, as in pyvene and in MIB's code, and
gradients go back through it; source_i is the value of the source's run, in which nothing is
changed. (Mueller et al. 2025 change four heads in two layers so, with a rotation a head.)

Only columns and layers behind the first change are run. Rows in which base and source are the same
have the base run's loss. Where memory asks for it a batch is cut over rows, and the gradients of
its parts are added up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.features.stacked_training import Loss, Trainable, logits_held, row_losses
from mechassay.features.training_data import (
    BundleValues,
    SiteTokens,
    StepData,
    TrainingData,
)
from mechassay.interventions.base_run import STACK_TOKENS, Branch, Change
from mechassay.models.memory import byte_budget, suffix_bytes


def joint_gradients(
    data: TrainingData, trainables: Sequence[Trainable], step: StepData, progress: float, loss: Loss
) -> Float[Tensor, "sites"]:
    """Leave the gradients of one run of all sites on their parameters; its loss, for every site,
    without penalties.

    Args:
        data: of sites that are changed together.
    """
    decoder, n, read = data.model.decoder, len(step.prompts), step.targets.shape[1]
    changed = torch.zeros(n, dtype=torch.bool, device=step.targets.device)
    for at in step.tokens:
        changed[at.row] = True
    total = 0.0
    same = (~changed).nonzero()[:, 0]
    if len(same):
        some = _rows_of(step, same)
        with torch.no_grad():
            finals = step.run.final(read)[some.prompts]
            total += float(row_losses(decoder, finals[None], some, loss).double().sum()) / n
    for rows in _parts(data, step, changed.nonzero()[:, 0], loss):
        some = _rows_of(step, rows)
        changes = [
            Change(site, at.row, at.base, _new(trainable, values.source, progress))
            for site, at, trainable, values in zip(
                data.sites, some.tokens, trainables, some.values, strict=True
            )
            if len(at)
        ]
        [finals] = step.run.run([Branch(some.prompts, tuple(changes))], read=read)
        each = row_losses(decoder, finals[None], some, loss).sum() / n
        total += float(each.detach())
        # Where nothing is read behind the sites there is no gradient.
        if each.requires_grad:
            each.backward()
    for trainable in trainables:
        penalty = trainable.penalty(progress)
        if penalty is not None:
            penalty.sum().backward()
    for trainable in trainables:
        for tensor, _ in trainable.parameters():
            if tensor.grad is None:
                tensor.grad = torch.zeros_like(tensor)
    return torch.full((len(data.sites),), total, dtype=torch.float64)


def _new(
    trainable: Trainable, source: Float[Tensor, "one m d"], progress: float
) -> Callable[[Tensor], Tensor]:
    """The change of one site's current values."""

    def new(values: Tensor) -> Tensor:
        return trainable.new(BundleValues(values[None], source), progress)[0].to(values.dtype)

    return new


def _rows_of(step: StepData, rows: Int[Tensor, "some"]) -> StepData:
    """Some rows of a step, each with all of its tokens."""
    place = rows.new_full((len(step.prompts),), -1)
    place[rows] = torch.arange(len(rows), device=rows.device)
    kept = [(place[at.row] >= 0).nonzero()[:, 0] for at in step.tokens]
    return StepData(
        step.run,
        step.prompts[rows],
        step.targets[rows],
        None if step.own is None else step.own[rows],
        None if step.expected is None else step.expected[rows],
        tuple(
            SiteTokens(place[at.row[index]], at.base[index], at.source[index])
            for at, index in zip(step.tokens, kept, strict=True)
        ),
        tuple(
            BundleValues(values.base[:, index], values.source[:, index])
            for values, index in zip(step.values, kept, strict=True)
        ),
    )


def _parts(
    data: TrainingData, step: StepData, rows: Int[Tensor, "n"], loss: Loss
) -> Iterator[Int[Tensor, "some"]]:
    """Rows that are differentiated together: as many as memory allows, at least one."""
    if not len(rows):
        return
    device, columns = data.model.device, step.run.n_columns
    token, row = suffix_bytes(data.model.decoder, columns, gradients=True)
    budget = byte_budget(token + row // columns, columns, device)
    size = max(4, data.model.decoder.embedding.element_size())
    read = size * logits_held(data.model.decoder, step.targets, loss) // len(step.targets)
    # As if every row were run from its first column on.
    most = budget // (columns * token + row + read)
    if device.type == "cpu":
        most = min(most, STACK_TOKENS // columns)
    yield from rows.split(max(1, most))
