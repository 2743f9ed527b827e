"""Interchanges of gym tasks: pairs of a split, lengths, control labels, and published indices.

`GymPairs`         the interchanges of one split, each followed by its swap
`region_lengths`   where base and source are not of equal length, region by region
`control_labels`   the same classes, continued by words that have nothing to do with them
`compat_batches`   the exchange of indices in CausalGym's public code, for its numbers
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mechassay.errors import BadPairs, BadUsage, one_of
from mechassay.gym.pairs import GymPairs
from mechassay.prompts.batch import token_rows
from mechassay.prompts.interchange_batch import LAST, InterchangeBatch
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine, Tabular, html_facts, html_table


@dataclass(frozen=True, eq=False, repr=False)
class RegionLengths(OneLine, Tabular):
    """Tokens of regions in base and source.

        longer     the region has another number of tokens in the source than in the base
        shifted    its last token is at another place, counted from the prompt's beginning

    Interchanges by columns are right in either case. Reading a vector at the other prompt's
    place is wrong wherever a region is shifted.

    Attributes:
        regions: names, in order.
        base, source: how many tokens each region has, by pair.
        base_end, source_end: the place of its last token, from 0 at the prompt's first.
    """

    regions: tuple[str, ...]
    base: Int[np.ndarray, "n regions"]
    source: Int[np.ndarray, "n regions"]
    base_end: Int[np.ndarray, "n regions"]
    source_end: Int[np.ndarray, "n regions"]

    @property
    def longer(self) -> Bool[np.ndarray, "n regions"]:
        """Whether a region has another number of tokens in the source."""
        return self.base != self.source

    @property
    def shifted(self) -> Bool[np.ndarray, "n regions"]:
        """Whether a region ends at another place in the source."""
        return self.base_end != self.source_end

    @property
    def share(self) -> float:
        """The share of pairs in which any region is shifted."""
        return float(self.shifted.any(axis=1).mean())

    def columns(self) -> dict[str, list[Any]]:
        """A row for each region: mean tokens, and the shares of pairs."""
        return {
            "region": list(self.regions),
            "tokens": ((self.base + self.source).mean(axis=0) / 2).tolist(),
            "longer": self.longer.mean(axis=0).tolist(),
            "shifted": self.shifted.mean(axis=0).tolist(),
        }

    def repr_fields(self) -> dict[str, Any]:
        """What a line says of it."""
        return {"n": len(self.base), "regions": self.regions, "shifted": self.share}

    def _repr_html_(self) -> str:
        rows = [
            (name, f"{tokens:.2f}", f"{longer:.0%}", f"{shifted:.0%}")
            for name, tokens, longer, shifted in zip(*self.columns().values(), strict=True)
        ]
        facts = {"pairs": f"{len(self.base):,}", "shifted anywhere": f"{self.share:.0%}"}
        table = html_table(("region", "tokens", "other length", "shifted"), rows)
        return html_facts("regions", facts, table)


@checked
def region_lengths(batch: InterchangeBatch, regions: Sequence[str] | None = None) -> RegionLengths:
    """Lengths and ends of the regions of interchanges.

    Args:
        regions: names of columns; all parts of the prompts by default.

    Raises:
        UnknownName: no such column.
        BadPairs: no regions; a prompt that lacks one.
    """
    every = [name for name in batch.names if "." not in name and name != LAST]
    names = tuple(every if regions is None else regions)
    if not names:
        raise BadPairs("The batch has no regions: its prompts have no spans.")
    ends = [[columns.cpu().numpy() for columns in batch.column(f"{name}.last")] for name in names]
    firsts = [
        [columns.cpu().numpy() for columns in batch.column(f"{name}.first")] for name in names
    ]
    begins = tuple(columns.cpu().numpy() for columns in batch.starts)
    counts, places = (
        [np.stack([tokens[side] for tokens in sides], axis=1) for side in (0, 1)]
        for sides in (
            [
                [b - a + 1 for a, b in zip(*both, strict=True)]
                for both in zip(firsts, ends, strict=True)
            ],
            [[end - begin for end, begin in zip(both, begins, strict=True)] for both in ends],
        )
    )
    return RegionLengths(names, counts[0], counts[1], places[0], places[1])


DOG_GIVE = (" dog", " give")


def control_labels(
    types: Sequence[str], given: Mapping[str, str] | Sequence[str] | None = None
) -> dict[str, str]:
    """The control label of each type.

    Each type of sentence gets one word, " dog" for the first type and " give" for the second
    (Arora et al. 2024, section 5.2, after Hewitt and Liang 2019). A direction that makes the
    model say these too moves the output, whatever it stands for. The order of types is that of
    the task.

    Args:
        given: by type, or in the order of the types; dog and give by default.

    Raises:
        BadUsage: not one different label for each type; more than two types and none given.
    """
    labels_given = DOG_GIVE if given is None else given
    labels = (
        dict(labels_given)
        if isinstance(labels_given, Mapping)
        else dict(zip(types, labels_given, strict=False))
    )
    right = len(labels_given) == len(types) and set(labels) == set(types)
    if not right or len(set(labels.values())) < len(types):
        raise BadUsage(
            f"Control labels are a word of its own for each of {', '.join(types)};"
            f" got {labels_given!r}."
        )
    return labels


def with_control_labels(
    pairs: GymPairs, labels: Mapping[str, str], batch: InterchangeBatch, model: Any
) -> InterchangeBatch:
    """The batch of some pairs with control labels in place of their own.

    Args:
        labels: by type.
        batch: of the pairs.
        model: a model, or a tokenizer.

    Raises:
        BadPairs: a pair without types; a label that is not one token after every sentence.
    """
    changed: list[Any] = []
    for pair in pairs:
        kinds = [pair.tags.get(name, "") for name in ("type", "source_type")]
        if any(kind not in labels for kind in kinds):
            raise BadPairs(
                f"Pair {pair.id}: control labels need the types of base and source; got"
                f" {kinds[0]!r} and {kinds[1]!r}."
            )
        changed.append(replace(pair, base_label=labels[kinds[0]], label=labels[kinds[1]]))
    made = GymPairs(
        changed, task=pairs.task, split=pairs.split, seed=pairs.seed, tested=pairs.tested
    ).batch(model)
    own = made.base_labels
    assert own is not None
    same = made.base.shape == batch.base.shape and torch.equal(made.base.cpu(), batch.base.cpu())
    if not same or made.labels.shape[1] > 1 or own.shape[1] > 1:
        words = " and ".join(map(repr, labels.values()))
        raise BadPairs(
            f"Control labels {words} are not one token each after the sentences of {pairs.task}."
        )
    device = batch.base.device
    return replace(batch, labels=made.labels.to(device), base_labels=own.to(device))


def tokens_of_labels(*batches: InterchangeBatch) -> Int[Tensor, "n t"]:
    """The base label and the label of every row, of one batch after the other."""
    columns: list[Tensor] = []
    for batch in batches:
        assert batch.base_labels is not None
        columns += [batch.base_labels[:, :1], batch.labels[:, :1]]
    return torch.cat(columns, dim=1)


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


@checked
def compat_batches(
    batch: InterchangeBatch, compat: str | None = CAUSALGYM_2024, *, pad: int = 0
) -> CompatBatches:
    """The batch with the columns that published code would use.

    CausalGym's call hands pyvene the positions of source and base the other way round. With p
    the place of a region's last token, counted from the first token, and both prompts padded on
    the right to the length of the longer:

        written     base at p_base                       (right)
        read        source at p_base                     (should be p_source)
        fitted on   base at p_source                     (should be p_base)

    `read` is what an intervention puts in; `fitted on` are the vectors of which probes, means
    and clusters are made. Where a prompt is too short, the token read is padding, token 0.
    Nothing changes where regions end at the same places (`region_lengths`).

    Padding attends to the prompt alone, as in the public code: neither to itself nor to other
    padding. The column "last" stays as it is, as logits are read there.

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
    changed = replace(made, places=places, alignment=batch.alignment, absent=batch.absent, **masks)
    return changed.to(batch.base.device)
