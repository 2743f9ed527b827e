"""The public code's exchange of indices, for those who want its numbers: `causalgym-2024`.

Its call hands pyvene the positions of source and base the other way round. With p the place of a
region's last token, counted from the first token, and both prompts padded on the right to the
length of the longer:

    written     base at p_base                       (right)
    read        source at p_base                     (should be p_source)
    fitted on   base at p_source                     (should be p_base)

`read` is what an intervention puts in; `fitted on` are the vectors of which probes, means and
clusters are made. Where a prompt is too short, the token read is padding, token 0. It changes
nothing where regions end at the same places (`region_lengths`).

Padding attends to the prompt alone, as in the public code: neither to itself nor to other padding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from mechassay.errors import one_of
from mechassay.interchange import LAST, InterchangeBatch
from mechassay.pairs import token_rows

CAUSALGYM_2024 = "causalgym-2024"
COMPATS = (CAUSALGYM_2024,)


class CompatBatches(NamedTuple):
    """Interchanges as some published code runs them.

    Attributes:
        intervened: written and read where that code does.
        fitted: whose base columns are where it takes the vectors that features are made of.
    """

    intervened: InterchangeBatch
    fitted: InterchangeBatch


def compat_batches(
    batch: InterchangeBatch, compat: str | None = CAUSALGYM_2024, *, pad: int = 0
) -> CompatBatches:
    """The batch with the columns that published code would use.

    The column "last" stays as it is, as logits are read there.

    Args:
        compat: "causalgym-2024". None: columns as they are.
        pad: the token that stands where a prompt is too short.

    Raises:
        UnknownName: no such code.
    """
    if compat is None:
        return CompatBatches(batch, batch)
    one_of("compat", compat, COMPATS)
    base, source = (
        token_rows(batch.base, batch.base_mask),
        token_rows(batch.source, batch.source_mask),
    )
    begins = batch.starts
    places = {
        name: (a - begins[0], b - begins[1])
        for name, (a, b) in batch.columns.items()
        if name != LAST
    }
    return CompatBatches(
        intervened=_with(
            batch, base, _padded(source, base, pad), {n: (b, b) for n, (b, _) in places.items()}
        ),
        fitted=_with(
            batch, _padded(base, source, pad), source, {n: (s, s) for n, (_, s) in places.items()}
        ),
    )


def _padded(rows: list[list[int]], others: list[list[int]], pad: int) -> list[list[int]]:
    """Prompts as long as the longer of their pair."""
    return [row + [pad] * (len(other) - len(row)) for row, other in zip(rows, others, strict=True)]


def _with(
    batch: InterchangeBatch,
    base: list[list[int]],
    source: list[list[int]],
    columns: dict[str, tuple[Int[Tensor, "n"], Int[Tensor, "n"]]],
) -> InterchangeBatch:
    """The batch with other prompts and columns."""
    made = InterchangeBatch.from_tokens(
        base,
        source,
        batch.labels,
        base_labels=batch.base_labels,
        columns={name: (a.tolist(), b.tolist()) for name, (a, b) in columns.items()},
        ids=batch.ids,
        groups=batch.groups,
        kinds=batch.kinds,
    )
    # Logits are read at the last token of the prompt, which padding follows.
    own = batch.base_lengths.cpu(), batch.source_lengths.cpu()
    lasts = [start + n - 1 for start, n in zip(made.starts, own, strict=True)]
    places = made.places.clone()
    places[made.names.index(LAST)] = torch.stack(lasts)
    masks = {
        name: getattr(made, name) & (torch.arange(getattr(made, name).shape[1]) <= last[:, None])
        for name, last in zip(("base_mask", "source_mask"), lasts, strict=True)
    }
    counts = {name: getattr(batch, name) for name in ("dropped", "alignment", "absent")}
    return replace(made, places=places, **masks, **counts).to(batch.base.device)
