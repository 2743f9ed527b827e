"""Batches: pairs of prompts as token ids.

Both prompts of a pair have equally many tokens, and end where the first token comes that tells
answers from foils (`prompts.tokenization`). Batches are left-padded, so that this place is the
last column of every prompt; padding never changes a result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from mechassay.errors import BadPairs, BadUsage
from mechassay.prompts.pairs import NO_COUNTS, Pair, align_pairs
from mechassay.prompts.tokenization import Aligned, Misaligned, counted_alignments
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


TokenIds = Sequence[Sequence[int]] | np.ndarray | Tensor
"""Prompts as token ids: a sequence a prompt, or a table [batch, pos]."""
NO_TOKEN = -1
DIFFER = 0.95
"""The share of pairs in which the token that decides the answer differs between the prompts."""
_TENSORS = ("clean", "counterfactual", "mask", "answers", "foils")


@dataclass(frozen=True, eq=False, repr=False)
class Batch(OneLine):
    """Pairs as token ids, left-padded: column -1 is the last token of every prompt.

    Attributes:
        clean, counterfactual: token ids; padding holds an arbitrary valid id.
        mask: True at real tokens, the same for both prompts of a pair.
        answers, foils: first token of each continuation, `NO_TOKEN` where a pair has fewer.
        ids: one name a pair.
        groups: the unit that error bars respect.
        alignment: how many pairs had tokens cut from or forced after their prompts, and how many
            are compared by the first of several tokens (see `mechassay.prompts.tokenization`).
    """

    clean: Int[Tensor, "batch pos"]
    counterfactual: Int[Tensor, "batch pos"]
    mask: Bool[Tensor, "batch pos"]
    answers: Int[Tensor, "batch n_answers"]
    foils: Int[Tensor, "batch n_foils"]
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    content: str = ""
    alignment: Mapping[str, int] = field(default_factory=lambda: NO_COUNTS)

    def __len__(self) -> int:
        return self.clean.shape[0]

    def repr_fields(self) -> dict[str, Any]:
        lengths = self.lengths
        tokens = f"{int(lengths.min())} to {int(lengths.max())}" if len(self) else "none"
        return {"pairs": len(self), "tokens": tokens, "device": str(self.clean.device)}

    @property
    def lengths(self) -> Int[Tensor, "batch"]:
        """Real tokens of each prompt."""
        return self.mask.sum(dim=1)

    @property
    def n_tokens(self) -> int:
        """Columns, padding included."""
        return self.clean.shape[1]

    def prompt_hashes(self) -> tuple[str, ...]:
        """Sixteen hex digits for each pair: of the tokens of its clean prompt and its answers."""
        rows = zip(token_rows(self.clean, self.mask), self.answers.tolist(), strict=True)
        return tuple(_token_hash(clean, sorted(right))[:16] for clean, right in rows)

    def token_hashes(self) -> dict[str, list[str]]:
        """Return 16 hex digits of the tokens of each pair's clean and counterfactual prompt."""
        return {
            name: [_token_hash(row)[:16] for row in token_rows(getattr(self, name), self.mask)]
            for name in ("clean", "counterfactual")
        }

    def contrasts(self) -> tuple[str, ...]:
        """Return the contrast of each pair, see `contrasts`."""
        clean, other = (
            token_rows(tokens, self.mask) for tokens in (self.clean, self.counterfactual)
        )
        return contrasts(clean, other, [str(sorted(own)) for own in self.answers.tolist()])

    def with_clean(self, prompts: Int[Tensor, "batch pos"]) -> Batch:
        """Return a copy of the batch with other clean prompts, e.g. its counterfactual prompts."""
        return replace(self, clean=prompts)

    def first_difference(self) -> int:
        """The first column in which any pair's prompts differ (`n_tokens` if none does)."""
        differs = (self.clean != self.counterfactual).any(dim=0).nonzero()
        return int(differs[0]) if len(differs) else self.n_tokens

    def changed_columns(self) -> Int[Tensor, "batch"]:
        """Columns from each pair's first difference on; at least the last one."""
        differs = self.clean != self.counterfactual
        first = differs.int().argmax(dim=1)
        return torch.where(differs.any(dim=1), self.n_tokens - first, 1)

    @checked
    def to(self, device: torch.device | str) -> Batch:
        """The same batch with its tensors on `device`."""
        return self._with_tensors(lambda x: x.to(device))

    def _with_tensors(self, change: Callable[[Tensor], Tensor]) -> Batch:
        return replace(self, **{name: change(getattr(self, name)) for name in _TENSORS})

    def select(self, rows: Sequence[int]) -> Batch:
        """The pairs at `rows`, in that order, trimmed to the longest of them."""
        index = torch.as_tensor(rows, dtype=torch.long, device=self.clean.device)
        mask = self.mask[index]
        start = int(mask.any(dim=0).int().argmax())
        return replace(
            self,
            clean=self.clean[index, start:],
            counterfactual=self.counterfactual[index, start:],
            mask=mask[:, start:],
            answers=self.answers[index],
            foils=self.foils[index],
            ids=tuple(self.ids[i] for i in rows),
            groups=tuple(self.groups[i] for i in rows),
            alignment=NO_COUNTS,
        )

    def sendable(self) -> Batch:
        """The batch as it travels to another process: on the CPU, without the counts, which are a
        view.
        """
        return replace(self.to("cpu"), alignment={})

    def repeat(self, times: int) -> Batch:
        """The batch `times` times over, copy after copy."""
        return replace(
            self._with_tensors(lambda x: x.repeat(times, 1)),
            ids=self.ids * times,
            groups=self.groups * times,
        )

    def widened(self, n_tokens: int) -> Batch:
        """The same pairs with more padding, to so many columns."""
        n_new = n_tokens - self.n_tokens
        if n_new == 0:
            return self
        clean, other, mask = (
            F.pad(x, (n_new, 0)) for x in (self.clean, self.counterfactual, self.mask)
        )
        return replace(self, clean=clean, counterfactual=other, mask=mask)

    def chunks(
        self, max_tokens: int, width: Callable[[int], int] = int, *, changed: float = 0.0
    ) -> Iterator[tuple[list[int], Batch]]:
        """Split into batches of at most `max_tokens` columns times rows (always at least one row).

        Pairs of similar length come together. Yields the row numbers of a chunk and the chunk.

        Args:
            width: the columns that so many tokens are padded to.
            changed: the share of a token's cost that it has only from the first column on in which
                prompts differ. Above 0, pairs that differ in as many columns come together.
        """
        lengths = [width(length) for length in self.lengths.tolist()]
        differ = self.changed_columns().tolist() if changed else lengths
        rows, widest = list[int](), (0, 0)
        for row in sorted(range(len(self)), key=lambda row: (differ[row], lengths[row])):
            wider = max(widest[0], lengths[row]), max(widest[1], differ[row])
            cost = (1 - changed) * wider[0] + changed * wider[1]
            if rows and (len(rows) + 1) * cost > max_tokens:
                yield rows, self.select(rows).widened(widest[0])
                rows, wider = [], (lengths[row], differ[row])
            rows.append(row)
            widest = wider
        if rows:
            yield rows, self.select(rows).widened(widest[0])

    @staticmethod
    @checked
    def from_tokens(
        clean: TokenIds,
        counterfactual: TokenIds,
        answers: Sequence[Any] | np.ndarray | Tensor,
        foils: Sequence[Any] | np.ndarray | Tensor,
        *,
        mask: np.ndarray | Tensor | None = None,
        counterfactual_mask: np.ndarray | Tensor | None = None,
        ids: Sequence[str] | None = None,
        groups: Sequence[str | None] | None = None,
        pad: int = 0,
    ) -> Batch:
        """A batch from token ids; no tokenizer needed.

        Args:
            clean: one sequence of ids a pair, or a tensor or array [batch, pos].
            counterfactual: the same lengths as `clean`.
            answers: one id, or a sequence of ids, a pair.
            foils: as `answers`.
            mask: for tensors with padding, True at real tokens of `clean`; padding may stand on
                either side.
            counterfactual_mask: the same of `counterfactual`, which without it is padded like
                `clean`, with the same ids.
            ids: names for messages and records; row numbers by default.
            groups: the units that error bars respect; each pair its own by default.
            pad: the id that fills padding.

        Raises:
            BadPairs: no pairs; a pair's lengths differ; an answer equals a foil.
            BadUsage: a mask of lists, or of another shape than its tensor or array.
        """
        other_mask = mask if counterfactual_mask is None else counterfactual_mask
        cleans = token_rows(clean, mask)
        name = "mask" if counterfactual_mask is None else "counterfactual_mask"
        counterfactuals = token_rows(counterfactual, other_mask, name)
        names = tuple(ids) if ids is not None else tuple(str(i) for i in range(len(cleans)))
        if not cleans:
            raise BadPairs("A batch needs at least one pair; got none.")
        if len(counterfactuals) != len(cleans):
            raise BadPairs(
                f"A batch needs as many counterfactual as clean prompts; got {len(counterfactuals)}"
                f" and {len(cleans)}."
            )
        for name, a, b in zip(names, cleans, counterfactuals, strict=True):
            if len(a) != len(b):
                raise BadPairs(
                    f"Pair {name}: clean has {len(a)} tokens, counterfactual has {len(b)}; they"
                    " must be equally long."
                )
            if not a:
                raise BadPairs(f"Pair {name}: the prompts have no tokens.")
        if mask is not None and counterfactual_mask is None:
            _check_padding(names, clean, counterfactual, mask)
        right, wrong = token_table(answers), token_table(foils)
        if len(right) != len(cleans) or len(wrong) != len(cleans):
            raise BadPairs(
                f"A batch of {len(cleans)} pairs needs as many rows of answers and foils; got"
                f" {len(right)} and {len(wrong)}."
            )
        clash = (right[:, :, None] == wrong[:, None, :]) & (right[:, :, None] != NO_TOKEN)
        if clash.any():
            row = int(clash.flatten(1).any(dim=1).nonzero()[0])
            raise BadPairs(
                f"Pair {names[row]}: an answer and a foil begin with the same token (id"
                f" {int(right[row][clash[row].any(1)][0])})."
            )
        width = max(map(len, cleans))
        units = [None] * len(names) if groups is None else groups
        return Batch(
            clean=left_padded(cleans, width, pad),
            counterfactual=left_padded(counterfactuals, width, pad),
            mask=torch.tensor([[False] * (width - len(a)) + [True] * len(a) for a in cleans]),
            answers=right,
            foils=wrong,
            ids=names,
            groups=tuple(n if unit is None else unit for n, unit in zip(names, units, strict=True)),
            content=_token_hash(cleans, counterfactuals, right, wrong),
        )

    @staticmethod
    @checked
    def from_pairs(
        pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerBase, *, prepend: Sequence[int] = ()
    ) -> Batch:
        """Tokenize pairs. Special tokens are those the tokenizer adds by itself, after `prepend`.

        Answers and foils are compared by the first token that tells them apart, see
        `mechassay.prompts.tokenization`.

        Raises:
            BadPairs: no pairs; a pair that cannot be aligned, by its id.
        """
        if not pairs:
            raise BadPairs("A batch needs at least one pair; got none.")
        aligned = align_pairs(pairs, tokenizer)
        for pair, row in zip(pairs, aligned, strict=True):
            if isinstance(row, Misaligned):
                raise BadPairs(f"Pair {pair.id}: {row.message}.")
        rows = [row for row in aligned if isinstance(row, Aligned)]
        head = list(prepend)
        batch = Batch.from_tokens(
            [head + row.clean for row in rows],
            [head + row.counterfactual for row in rows],
            [row.answers for row in rows],
            [row.foils for row in rows],
            ids=[pair.id for pair in pairs],
            groups=[pair.group for pair in pairs],
        )
        return replace(batch, alignment=MappingProxyType(counted_alignments(rows)))


def _check_padding(names: Sequence[str], clean: Any, counterfactual: Any, mask: Any) -> None:
    """Refuse counterfactual prompts whose padding differs from that of the clean prompts.

    Raises:
        BadPairs: one has tokens where the clean prompt has padding, or the id of the padding where
            the clean prompt has tokens.
    """
    real = torch.as_tensor(mask).bool().cpu()
    one, other = (torch.as_tensor(x).cpu() for x in (clean, counterfactual))
    longer = ((one != other) & ~real).any(dim=1)
    pads = one[~real].unique()
    # At the end of the prompt where padding would begin.
    last = real.shape[1] - 1 - real.flip(1).int().argmax(1)
    end = torch.where(~real[:, 0].all(), real.int().argmax(1), last)[:, None]
    clean_pads, other_pads = (torch.isin(x.gather(1, end), pads)[:, 0] for x in (one, other))
    shorter = other_pads & ~clean_pads
    wrong = (longer | shorter).nonzero()
    if len(wrong):
        where = "marks padding" if bool(longer[wrong[0]]) else "marks tokens"
        raise BadPairs(
            f"Pair {names[int(wrong[0])]}: where the mask {where} in clean, the counterfactual has"
            f" {'other ids' if bool(longer[wrong[0]]) else 'the id of padding'}. Both prompts must"
            " be equally long; if they are, pass counterfactual_mask, which says where the"
            " counterfactual's tokens are."
        )


def contrasts(
    clean: Sequence[Sequence[int]],
    counterfactual: Sequence[Sequence[int]],
    answers: Sequence[str],
) -> tuple[str, ...]:
    """Return the contrast of each pair: equal texts if the same word decides the answers.

    One word decides the answers if, at one place of the clean prompts (counted from the end, or
    the first or last place where the prompts differ), the token differs from the counterfactual
    prompt's in nearly all pairs, and pairs with the same token have the same answers. Of several
    such places, the place with the fewest different tokens counts. If no word decides, each prompt
    is a contrast of its own.

    Args:
        clean, counterfactual: the tokens of each pair's prompts.
        answers: equal texts where the answers are equal.
    """
    best: Sequence[str] = [_token_hash(row)[:16] for row in clean]
    width = max(map(len, (*clean, *counterfactual)), default=0)
    own, other = (
        np.array([[NO_TOKEN] * (width - len(row)) + list(row) for row in rows])
        for rows in (clean, counterfactual)
    )
    if not own.size:
        return tuple(best)
    differ, rows = own != other, np.arange(len(own))
    from_start = [
        next((n for n, (a, b) in enumerate(zip(x, y, strict=False)) if a != b), 0)
        for x, y in zip(clean, counterfactual, strict=True)
    ]
    first = np.array([width - len(x) + n for x, n in zip(clean, from_start, strict=True)])
    last = width - 1 - differ[:, ::-1].argmax(axis=1)
    places = [np.full(len(own), n) for n in range(width) if (own[:, n] != NO_TOKEN).all()]
    for place in (*places, first, last):
        if differ[rows, place].mean() < DIFFER:
            continue
        tokens = own[rows, place].tolist()
        decided = len(set(zip(tokens, answers, strict=True))) == len(set(tokens))
        if decided and len(set(tokens)) < len(set(best)):
            best = list(map(str, tokens))
    return tuple(best)


PairsLike = Pair | Sequence[Pair] | Batch
"""What models and methods take: one pair, several, or a batch."""


def token_rows(
    tokens: TokenIds, mask: np.ndarray | Tensor | None, name: str = "mask"
) -> list[list[int]]:
    """Return the real tokens of each row; without a mask all tokens are real.

    Args:
        name: of the mask, for the message.

    Raises:
        BadUsage: a mask of another shape than the tensor or array of tokens, or of lists.
    """
    table = tokens if isinstance(tokens, np.ndarray | Tensor) else None
    if mask is None:
        return [list(map(int, row)) for row in tokens] if table is None else table.tolist()
    if table is None or getattr(mask, "shape", ()) != tuple(table.shape):
        shapes = [tuple(getattr(x, "shape", ())) or "lists" for x in (mask, tokens)]
        raise BadUsage(
            f"{name} must be a tensor or array of the shape of its tokens; got {shapes[0]} for"
            f" tokens of {shapes[1]}."
        )
    return [
        [token for token, real in zip(row, keep, strict=True) if real]
        for row, keep in zip(table.tolist(), mask.tolist(), strict=True)
    ]


def token_table(tokens: Sequence[Any] | np.ndarray | Tensor) -> Int[Tensor, "batch width"]:
    """One token, or several, a row, with `NO_TOKEN` on the right of those that have fewer."""
    rows = tokens.tolist() if isinstance(tokens, np.ndarray | Tensor) else list(tokens)
    several = (Sequence, np.ndarray, Tensor)
    lists = [list(row) if isinstance(row, several) else [row] for row in rows]
    width = max((len(row) for row in lists), default=0)
    table = [[int(t) for t in row] + [NO_TOKEN] * (width - len(row)) for row in lists]
    return torch.tensor(table, dtype=torch.long).reshape(len(lists), width)


def left_padded(rows: Sequence[list[int]], width: int, pad: int) -> Int[Tensor, "batch pos"]:
    """Rows of at most `width` tokens that end in the last column."""
    return torch.tensor([[pad] * (width - len(row)) + row for row in rows], dtype=torch.long)


def _token_hash(*parts: object) -> str:
    plain = [part.tolist() if isinstance(part, Tensor) else part for part in parts]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()
