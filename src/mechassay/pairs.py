"""Pairs of prompts and the token batches made of them.

A `Pair` is one example: a clean prompt, a counterfactual prompt, and the answers and foils
that the objective compares. A `Batch` holds many pairs as token ids, aligned and checked
once, when it is made: both prompts of a pair have equally many tokens, and no answer
begins with the same token as a foil. Batches are left-padded, so that the last token of
every prompt stands in the last column; padding never changes a result.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mechassay.errors import BadPairs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EMPTY: Mapping[str, str] = MappingProxyType({})
NO_TOKEN = -1


@dataclass(frozen=True)
class Pair:
    """One counterfactual example.

    Attributes:
        id: unique within its task and split.
        clean: the prompt whose behaviour is explained.
        counterfactual: the prompt that ablated edges carry; as many tokens as `clean`.
        answers: right continuations of `clean`, with their leading space (" Mary").
        foils: continuations that the answers are compared with.
        group: the unit that error bars respect; pairs of one group are resampled together.
            None: the pair is its own group.
        tags: template fields, for group-by.
    """

    id: str
    clean: str
    counterfactual: str
    answers: tuple[str, ...]
    foils: tuple[str, ...]
    group: str | None = None
    tags: Mapping[str, str] = field(default_factory=lambda: EMPTY)

    def as_dict(self) -> dict[str, Any]:
        """The pair as plain JSON values."""
        return {
            "id": self.id,
            "clean": self.clean,
            "counterfactual": self.counterfactual,
            "answers": list(self.answers),
            "foils": list(self.foils),
            "group": self.group,
            "tags": dict(self.tags),
        }


def content_hash(pairs: Sequence[Pair]) -> str:
    """SHA-256 of the pairs' content, in order: the same pairs give the same hash on any machine."""
    digest = hashlib.sha256()
    for pair in pairs:
        digest.update(json.dumps(pair.as_dict(), sort_keys=True, ensure_ascii=False).encode())
        digest.update(b"\n")
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Batch:
    """Pairs as token ids, left-padded: column -1 is the last token of every prompt.

    Attributes:
        clean, counterfactual: token ids; padding holds an arbitrary valid id.
        mask: True at real tokens, the same for both prompts of a pair.
        answers, foils: first token of each continuation, `NO_TOKEN` where a pair has fewer.
        ids: one name a pair.
        groups: the unit that error bars respect.
    """

    clean: Int[Tensor, "batch pos"]
    counterfactual: Int[Tensor, "batch pos"]
    mask: Bool[Tensor, "batch pos"]
    answers: Int[Tensor, "batch n_answers"]
    foils: Int[Tensor, "batch n_foils"]
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    content: str = ""

    def __len__(self) -> int:
        return self.clean.shape[0]

    @property
    def lengths(self) -> Int[Tensor, "batch"]:
        """Real tokens of each prompt."""
        return self.mask.sum(dim=1)

    @property
    def n_tokens(self) -> int:
        """Columns, padding included."""
        return self.clean.shape[1]

    def first_difference(self) -> int:
        """The first column in which any pair's prompts differ (`n_tokens` if none does).

        Attention is causal, so clean and counterfactual runs are identical before it.
        """
        differs = (self.clean != self.counterfactual).any(dim=0).nonzero()
        return int(differs[0]) if len(differs) else self.n_tokens

    def to(self, device: torch.device | str) -> Batch:
        """The same batch with its tensors on `device`."""
        moved = {name: getattr(self, name).to(device) for name in ("clean", "counterfactual", "mask", "answers", "foils")}
        return replace(self, **moved)

    def select(self, rows: Sequence[int]) -> Batch:
        """The pairs at `rows`, in that order, trimmed to the longest of them."""
        index = torch.as_tensor(rows, dtype=torch.long, device=self.clean.device)
        mask = self.mask[index]
        start = int(mask.any(dim=0).int().argmax())
        return Batch(
            clean=self.clean[index, start:],
            counterfactual=self.counterfactual[index, start:],
            mask=mask[:, start:],
            answers=self.answers[index],
            foils=self.foils[index],
            ids=tuple(self.ids[i] for i in rows),
            groups=tuple(self.groups[i] for i in rows),
            content=self.content,
        )

    def repeat(self, times: int) -> Batch:
        """The batch `times` times over, copy after copy."""
        tensors = {name: getattr(self, name).repeat(times, 1) for name in ("clean", "counterfactual", "mask", "answers", "foils")}
        return replace(self, **tensors, ids=self.ids * times, groups=self.groups * times)

    def chunks(self, max_tokens: int) -> Iterator[tuple[list[int], Batch]]:
        """Split into batches of at most `max_tokens` columns times rows (always at least one row).

        Pairs of similar length come together, so that little is padding. Yields the row
        numbers of a chunk and the chunk.
        """
        order = sorted(range(len(self)), key=self.lengths.tolist().__getitem__)
        lengths = self.lengths.tolist()
        rows: list[int] = []
        for row in order:
            if rows and (len(rows) + 1) * lengths[row] > max_tokens:
                yield rows, self.select(rows)
                rows = []
            rows.append(row)
        if rows:
            yield rows, self.select(rows)

    @staticmethod
    def from_tokens(
        clean: Sequence[Sequence[int]] | Tensor,
        counterfactual: Sequence[Sequence[int]] | Tensor,
        answers: Sequence[Any] | Tensor,
        foils: Sequence[Any] | Tensor,
        *,
        mask: Tensor | None = None,
        ids: Sequence[str] | None = None,
        groups: Sequence[str | None] | None = None,
        pad: int = 0,
    ) -> Batch:
        """A batch from token ids; no tokenizer needed.

        Args:
            clean: one sequence of ids a pair, or a tensor [batch, pos].
            counterfactual: the same lengths as `clean`.
            answers: one id, or a sequence of ids, a pair.
            foils: as `answers`.
            mask: for tensors with padding, True at real tokens; padding may stand on either
                side and `counterfactual` is padded like `clean`.
            ids: names for messages and records; row numbers by default.
            groups: the units that error bars respect; each pair its own by default.
            pad: the id that fills padding.

        Raises:
            BadPairs: no pairs; a pair's lengths differ; an answer equals a foil.
        """
        cleans, counterfactuals = _rows(clean, mask), _rows(counterfactual, mask)
        names = tuple(ids) if ids is not None else tuple(str(i) for i in range(len(cleans)))
        if not cleans:
            raise BadPairs("A batch needs at least one pair; got none.")
        if len(counterfactuals) != len(cleans):
            raise BadPairs(f"A batch needs as many counterfactual as clean prompts; got {len(counterfactuals)} and {len(cleans)}.")
        for name, a, b in zip(names, cleans, counterfactuals, strict=True):
            if len(a) != len(b):
                raise BadPairs(f"Pair {name}: clean has {len(a)} tokens, counterfactual has {len(b)}; they must be equally long.")
            if not a:
                raise BadPairs(f"Pair {name}: the prompts have no tokens.")
        right, wrong = _table(answers), _table(foils)
        if len(right) != len(cleans) or len(wrong) != len(cleans):
            raise BadPairs(f"A batch of {len(cleans)} pairs needs as many rows of answers and foils; got {len(right)} and {len(wrong)}.")
        clash = (right[:, :, None] == wrong[:, None, :]) & (right[:, :, None] != NO_TOKEN)
        if clash.any():
            row = int(clash.flatten(1).any(dim=1).nonzero()[0])
            raise BadPairs(
                f"Pair {names[row]}: an answer and a foil begin with the same token (id {int(right[row][clash[row].any(1)][0])})."
            )
        width = max(map(len, cleans))
        if groups is None:
            units = names
        else:
            units = tuple(name if group is None else group for name, group in zip(names, groups, strict=True))
        return Batch(
            clean=_pad(cleans, width, pad),
            counterfactual=_pad(counterfactuals, width, pad),
            mask=torch.tensor([[False] * (width - len(a)) + [True] * len(a) for a in cleans]),
            answers=right,
            foils=wrong,
            ids=names,
            groups=units,
            content=_token_hash(cleans, counterfactuals, right, wrong),
        )

    @staticmethod
    def from_pairs(pairs: Sequence[Pair], tokenizer: PreTrainedTokenizerBase, *, prepend: Sequence[int] = ()) -> Batch:
        """Tokenize pairs. Special tokens are those the tokenizer adds by itself, after `prepend`.

        An answer's token is the first one it adds when written after the clean prompt, so
        that tokenizers which merge or prefix spaces are handled.

        Raises:
            BadPairs: no pairs; unequal lengths; an answer that changes the prompt's own
                tokens; an answer and a foil that begin with the same token.
        """
        if not pairs:
            raise BadPairs("A batch needs at least one pair; got none.")
        head = list(prepend)
        cleans = [head + ids for ids in _encode(tokenizer, [pair.clean for pair in pairs])]
        others = [head + ids for ids in _encode(tokenizer, [pair.counterfactual for pair in pairs])]
        return Batch.from_tokens(
            cleans,
            others,
            _first_tokens(pairs, cleans, "answers", tokenizer, head),
            _first_tokens(pairs, cleans, "foils", tokenizer, head),
            ids=[pair.id for pair in pairs],
            groups=[pair.group for pair in pairs],
        )


def _encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    return [list(ids) for ids in tokenizer(list(texts), padding=False, return_attention_mask=False)["input_ids"]]


def _first_tokens(
    pairs: Sequence[Pair], prompts: Sequence[list[int]], which: str, tokenizer: PreTrainedTokenizerBase, head: list[int]
) -> list[list[int]]:
    texts = [(row, text) for row, pair in enumerate(pairs) for text in getattr(pair, which)]
    encoded = _encode(tokenizer, [pairs[row].clean + text for row, text in texts])
    found: list[list[int]] = [[] for _ in pairs]
    for (row, text), ids in zip(texts, encoded, strict=True):
        ids, prompt = head + ids, prompts[row]
        # Some tokenizers end every text with a special token (T5-like); it is not part of the prompt.
        if ids[: len(prompt)] != prompt or len(ids) == len(prompt):
            raise BadPairs(f"Pair {pairs[row].id}: {text!r} written after the prompt changes the prompt's tokens or adds none.")
        found[row].append(ids[len(prompt)])
    return found


def _rows(tokens: Sequence[Sequence[int]] | Tensor, mask: Tensor | None) -> list[list[int]]:
    if not isinstance(tokens, Tensor):
        return [list(map(int, row)) for row in tokens]
    if mask is None:
        return tokens.tolist()
    return [[t for t, real in zip(row, keep, strict=True) if real] for row, keep in zip(tokens.tolist(), mask.bool().tolist(), strict=True)]


def _table(tokens: Sequence[Any] | Tensor) -> Int[Tensor, "batch width"]:
    rows = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
    lists = [list(row) if isinstance(row, Sequence | Tensor) else [row] for row in rows]
    width = max((len(row) for row in lists), default=0)
    return torch.tensor([[int(t) for t in row] + [NO_TOKEN] * (width - len(row)) for row in lists], dtype=torch.long).reshape(
        len(lists), width
    )


def _pad(rows: Sequence[list[int]], width: int, pad: int) -> Int[Tensor, "batch pos"]:
    return torch.tensor([[pad] * (width - len(row)) + row for row in rows], dtype=torch.long)


def _token_hash(*parts: object) -> str:
    plain = [part.tolist() if isinstance(part, Tensor) else part for part in parts]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()
