"""Interchanges as token ids: two tables of prompts, and what follows each base.

A row of an `InterchangeBatch` says: run the base with activations of the source in the places of
some *columns*, and expect the label. Both prompts are left-padded, each table to its own width, so
that their last tokens are columns -1 of their tables; a place has a column in each. Labels are
tokens in sequence; `NO_TOKEN` fills the right of those that are shorter.

*Reading labels of several tokens.* With the label's tokens written after the prompt, all but the
last (`teacher_forced`), each token is predicted in the column before its own:

    w = max(prompt + m_i - 1)     label token j of row i is predicted in column w - m_i + j

where m_i is the row's number of label tokens; so the last m columns are all that is read, and
`targets` are the tokens that stand against them. A model writes the label greedily if and only if
each of these predictions is right.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.errors import BadFile, BadPairs, BadUsage, UnknownName, first_line
from mechassay.prompts.batch import NO_TOKEN, Batch, left_padded, token_rows, token_table
from mechassay.prompts.interchanges import (
    InterchangePair,
    InterchangeTokens,
    interchange_tokens,
)
from mechassay.prompts.pairs import EMPTY, LAST, NO_COUNTS, Pair, Pairs
from mechassay.prompts.tokenization import Misaligned, tokenizer_of
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine, data_frame, html_facts
from mechassay.utils.files import FORMAT, write_text

TAKEN = (LAST, "all")
"""Names of columns that mean something in every batch."""
KIND = "interchanges"
_TENSORS = ("base", "base_mask", "source", "source_mask", "labels", "places")
_OPTIONAL = ("base_labels", "values")

Tokens = Sequence[Sequence[int]] | Tensor


@dataclass(frozen=True, eq=False, repr=False)
class InterchangeBatch(OneLine):
    """Interchanges as token ids.

    Attributes:
        base, source: prompts, each table left-padded to its own width; padding holds an arbitrary
            valid id.
        base_mask, source_mask: True at real tokens. Columns behind a prompt's last token, if there
            are any, see the prompt, and nothing sees them: see `gym.compat_batches`.
        labels: what follows the base after the interchange, with `NO_TOKEN` on the right.
        base_labels: what follows it without; all `NO_TOKEN` in rows where that is not known, and
            None where it is in no row.
        names: of columns. "last" is always there: the last token of the prompts.
        places: each column, of the base and of the source, for every row; see `columns`.
        ids, groups, kinds: of each row its name, the unit that error bars respect, and the kind of
            its counterfactual ("" where there are no kinds).
        alignment: in how many rows tokens that a label changes were cut ("cut"), and how many
            have other right labels that are not used ("alternatives").
        absent: by name, why a part of prompts has no columns: a prompt that lacks it.
        values: what is expected of logit(base label) - logit(label) after the interchange, of
            their first tokens, in fp64; NaN in rows where nothing is, None where it is in no row.
    """

    base: Int[Tensor, "n base_pos"]
    base_mask: Bool[Tensor, "n base_pos"]
    source: Int[Tensor, "n source_pos"]
    source_mask: Bool[Tensor, "n source_pos"]
    labels: Int[Tensor, "n m"]
    base_labels: Int[Tensor, "n m2"] | None
    names: tuple[str, ...]
    places: Int[Tensor, "columns 2 n"]
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    kinds: tuple[str, ...]
    alignment: Mapping[str, int] = field(default_factory=lambda: NO_COUNTS)
    absent: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    values: Float[Tensor, "n"] | None = None

    def __len__(self) -> int:
        return self.base.shape[0]

    def repr_fields(self) -> dict[str, Any]:
        kinds = tuple(dict.fromkeys(filter(None, self.kinds)))
        return {
            "n": len(self),
            "base": _range_text(self.base_lengths),
            "source": _range_text(self.source_lengths),
            "label": _range_text(self.label_lengths),
            "columns": self.names,
            **({"kinds": kinds} if kinds else {}),
            "device": str(self.base.device),
        }

    def _repr_html_(self) -> str:
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in Counter(self.kinds).items() if kind)
        aligned = "; ".join(f"{n:,} {reason}" for reason, n in self.alignment.items() if n)
        facts = {
            "tokens of the base": _range_text(self.base_lengths),
            "tokens of the source": _range_text(self.source_lengths),
            "tokens of the label": _range_text(self.label_lengths),
            "columns": ", ".join(self.names),
            **({"kinds": kinds} if kinds else {}),
            "groups": f"{len(set(self.groups)):,}",
            **({"aligned": aligned} if aligned else {}),
        }
        return html_facts(f"{len(self):,} interchanges", facts)

    @property
    def base_lengths(self) -> Int[Tensor, "n"]:
        """Real tokens of each base, those of the label included where it is teacher-forced."""
        return self.base_mask.sum(dim=1)

    @property
    def source_lengths(self) -> Int[Tensor, "n"]:
        """Real tokens of each source."""
        return self.source_mask.sum(dim=1)

    @property
    def starts(self) -> tuple[Int[Tensor, "n"], Int[Tensor, "n"]]:
        """The columns of each prompt's first tokens, of base and source."""
        return self.base_mask.int().argmax(dim=1), self.source_mask.int().argmax(dim=1)

    @property
    def label_lengths(self) -> Int[Tensor, "n"]:
        """Tokens of each label."""
        return (self.labels != NO_TOKEN).sum(dim=1)

    @property
    def columns(self) -> Mapping[str, tuple[Int[Tensor, "n"], Int[Tensor, "n"]]]:
        """By name, a column of `base` and one of `source` for every row."""
        sides = (sides_of.unbind() for sides_of in self.places)
        return MappingProxyType({k: (a, b) for k, (a, b) in zip(self.names, sides, strict=True)})

    def column(self, name: str) -> tuple[Int[Tensor, "n"], Int[Tensor, "n"]]:
        """The columns of one name in `base` and in `source`.

        Raises:
            UnknownName: no prompt has such a part.
            BadPairs: a prompt lacks it.
        """
        if name in self.names:
            base, source = self.places[self.names.index(name)]
            return base, source
        if (why := self.absent.get(name.removesuffix(".first").removesuffix(".last"))) is not None:
            raise BadPairs(why)
        raise UnknownName("column", name, self.names)

    def first_difference(self) -> Int[Tensor, "n"]:
        """The base column of each row's first token that is not the source's at the same place.

        Places are counted from the first token of each prompt. Before this column both runs are
        the same at the same places, so an interchange of a place there changes nothing. It is the
        width of `base` where the base is as the source, or its beginning; and the first column
        beyond the source where that is the beginning of the base.
        """
        base_lengths, source_lengths = self.base_lengths, self.source_lengths
        shortest = torch.minimum(base_lengths, source_lengths)[:, None]
        place = torch.arange(min(self.base.shape[1], self.source.shape[1]), device=self.base.device)
        starts = self.starts
        ours, theirs = (
            table.gather(1, (start[:, None] + place).clamp(max=table.shape[1] - 1))
            for table, start in zip((self.base, self.source), starts, strict=True)
        )
        same = (ours == theirs) & (place < shortest)
        return starts[0] + same.long().cumprod(dim=1).sum(dim=1)

    # --- other batches ----------------------------------------------------------------------------

    @checked
    def to(self, device: torch.device | str) -> InterchangeBatch:
        """The same batch with its tensors on `device`."""
        there = [name for name in (*_TENSORS, *_OPTIONAL) if getattr(self, name) is not None]
        return replace(self, **{name: getattr(self, name).to(device) for name in there})

    def select(self, rows: Sequence[int] | Int[Tensor, "k"]) -> InterchangeBatch:
        """The rows of these numbers, in that order, each table trimmed to the longest of them."""
        index = torch.as_tensor(rows, dtype=torch.long, device=self.base.device)
        numbers: list[int] = index.tolist()
        masks = self.base_mask[index], self.source_mask[index]
        # Columns that are padding in all rows stand on the left.
        begins = [int(mask.any(dim=0).int().argmax()) if len(mask) else 0 for mask in masks]
        shift = torch.tensor(begins, device=index.device)[:, None]
        own = None if self.base_labels is None else _trimmed(self.base_labels[index])
        expected = None if self.values is None else self.values[index]
        return replace(
            self,
            base=self.base[index, begins[0] :],
            base_mask=masks[0][:, begins[0] :],
            source=self.source[index, begins[1] :],
            source_mask=masks[1][:, begins[1] :],
            labels=_trimmed(self.labels[index]),
            base_labels=own,
            places=self.places[..., index] - shift,
            ids=_chosen(self.ids, numbers),
            groups=_chosen(self.groups, numbers),
            kinds=_chosen(self.kinds, numbers),
            alignment=NO_COUNTS,
            values=expected,
        )

    def chunks(self, max_tokens: int) -> Iterator[tuple[list[int], InterchangeBatch]]:
        """Split into batches of which neither table has more than `max_tokens` columns times rows
        (always at least one row).

        Rows of similar length come together. Yields the row numbers of a chunk and the chunk.
        """
        lengths: list[int] = torch.maximum(self.base_lengths, self.source_lengths).tolist()
        rows: list[int] = []
        for row in sorted(range(len(self)), key=lengths.__getitem__):
            if rows and (len(rows) + 1) * lengths[row] > max_tokens:
                yield rows, self.select(rows)
                rows = []
            rows.append(row)
        if rows:
            yield rows, self.select(rows)

    def teacher_forced(self, *, base_labels: bool = False) -> InterchangeBatch:
        """The batch whose bases are followed by all but the last token of their labels.

        Columns are still those of the prompts, "last" too. What the last `labels.shape[1]` columns
        of `base` predict is compared with `targets`. Of a batch that is teacher-forced already it
        is the batch itself; where labels are single tokens, the bases are as they were.

        Args:
            base_labels: write the base's own labels; they are the `labels` of the new batch.

        Raises:
            BadPairs: a base label that is not known.
        """
        labels = self._known_base_labels() if base_labels else self.labels
        return replace(self._followed_by(labels[:, :-1], labels), labels=labels)

    def _known_base_labels(self) -> Int[Tensor, "n m2"]:
        known = self.base_labels
        unknown = torch.ones(len(self), dtype=torch.bool)
        if known is not None:
            unknown = (known == NO_TOKEN).all(dim=1)
        if known is None or bool(unknown.any()):
            row = int(unknown.int().argmax())
            raise BadPairs(f"Pair {self.ids[row]} has no label of its base.")
        return known

    def _followed_by(
        self, beginnings: Int[Tensor, "n k"], labels: Int[Tensor, "n m"]
    ) -> InterchangeBatch:
        """The prompts, each followed by as many of `beginnings` as its label has but one, and
        left-padded anew.
        """
        begin, width = self.starts[0], self.base.shape[1]
        prompt = self.column(LAST)[0] + 1 - begin
        written = ((labels != NO_TOKEN).sum(dim=1) - 1).clamp(min=0, max=beginnings.shape[1])
        length = prompt + written
        wide = int(length.max()) if len(self) else 0
        # The place in its row of each cell of the new table; below 0 is padding.
        place = torch.arange(wide, device=self.base.device) - (wide - length)[:, None]
        of_prompt, of_label = begin[:, None] + place, width + place - prompt[:, None]
        index = torch.where(place < prompt[:, None], of_prompt, of_label)
        mask = place >= 0
        tokens = torch.cat((self.base, beginnings.clamp(min=0)), dim=1)
        base = tokens.gather(1, index.where(mask, 0)).where(mask, 0)
        shift = (wide - length) - begin
        shifts = torch.stack((shift, torch.zeros_like(shift)))
        return replace(self, base=base, base_mask=mask, places=self.places + shifts)

    @property
    def targets(self) -> Int[Tensor, "n m"]:
        """The tokens that the last m columns of `teacher_forced` predict, `NO_TOKEN` where they
        predict none: the labels, with their padding on the left.
        """
        lengths, m = self.label_lengths[:, None], self.labels.shape[1]
        place = torch.arange(m, device=self.labels.device) - (m - lengths)
        return self.labels.gather(1, place.clamp(min=0)).where(place >= 0, NO_TOKEN)

    # --- makers -----------------------------------------------------------------------------------

    @staticmethod
    @checked
    def from_tokens(
        base: Tokens,
        source: Tokens,
        labels: Sequence[Any] | Tensor,
        *,
        base_labels: Sequence[Any] | Tensor | None = None,
        columns: Mapping[str, Any] | None = None,
        ids: Sequence[str] | None = None,
        groups: Sequence[str | None] | None = None,
        kinds: Sequence[str] | None = None,
        values: Sequence[float | None] | Tensor | None = None,
        base_mask: Tensor | None = None,
        source_mask: Tensor | None = None,
        pad: int = 0,
    ) -> InterchangeBatch:
        """A batch from token ids; no tokenizer needed.

        Args:
            base, source: one sequence of ids a row, of any lengths, or a tensor [n, pos].
            labels: what follows the base after the interchange: one id, or a sequence of ids, a
                row.
            base_labels: what follows it without, as `labels`; None or nothing in a row where that
                is not known.
            columns: by name, a tuple (of the base, of the source); anything but a tuple is the
                same in both. Each is an index into a prompt's own tokens, before any padding, for
                every row, or one index for all rows; negative ones count from the prompt's end.
            ids: names for messages and records; row numbers by default.
            groups: the units that error bars respect; each row its own by default.
            kinds: of counterfactuals.
            values: what is expected of logit(base label) - logit(label) after the interchange;
                NaN or None in rows where nothing is.
            base_mask, source_mask: for tensors with padding, on either side; True at real tokens.
            pad: the id that fills padding.

        Raises:
            BadPairs: no rows; not as many of one thing as of another; a prompt or a label without
                tokens; a position that a prompt does not have.
            BadUsage: a name of a column that is taken.
        """
        rows = [
            token_rows(tokens, mask, f"{name}_mask")
            for name, tokens, mask in (("base", base, base_mask), ("source", source, source_mask))
        ]
        n = len(rows[0])
        if not n:
            raise BadPairs("A batch needs at least one interchange; got none.")
        own = None if base_labels is None else _unpadded(base_labels)
        units = [None] * n if groups is None else list(groups)
        named = [str(i) for i in range(n)] if ids is None else list(ids)
        sorts = [""] * n if kinds is None else list(kinds)
        labels_of = _unpadded(labels)
        expected = None if values is None else [math.nan if x is None else float(x) for x in values]
        for what, given in (
            ("sources", rows[1]),
            ("labels", labels_of),
            ("base labels", own),
            ("ids", named),
            ("groups", units),
            ("kinds", sorts),
            ("values", expected),
        ):
            if given is not None and len(given) != n:
                raise BadPairs(f"A batch of {n} bases needs {n} {what}; got {len(given)}.")
        for name, ours, theirs, label in zip(named, *rows, labels_of, strict=True):
            lacking = {"base": ours, "source": theirs, "label": label}
            for what, tokens in lacking.items():
                if not tokens:
                    raise BadPairs(f"Pair {name}: its {what} has no tokens.")
        widths = [max(map(len, texts)) for texts in rows]
        placed: dict[str, Tensor] = {}
        for name, at in {LAST: -1, **_names_free(columns)}.items():
            sides = at if isinstance(at, tuple) else (at, at)
            if len(sides) != 2:
                raise BadUsage(
                    f"columns[{name!r}] must be (of the base, of the source), or a list that is"
                    f" the same in both; got a tuple of {len(sides)}."
                )
            both = zip(("base", "source"), sides, rows, widths, strict=True)
            made = [_placed(name, side, x, given, w, named) for side, x, given, w in both]
            placed[name] = torch.stack(made)
        tables = [left_padded(texts, width, pad) for texts, width in zip(rows, widths, strict=True)]
        masks = [
            torch.tensor([[False] * (width - len(row)) + [True] * len(row) for row in texts])
            for texts, width in zip(rows, widths, strict=True)
        ]
        return InterchangeBatch(
            base=tables[0],
            base_mask=masks[0],
            source=tables[1],
            source_mask=masks[1],
            labels=token_table(labels_of),
            base_labels=token_table(own) if own is not None and any(own) else None,
            names=tuple(placed),
            places=torch.stack(list(placed.values())),
            ids=tuple(named),
            groups=tuple(a if b is None else b for a, b in zip(named, units, strict=True)),
            kinds=tuple(sorts),
            values=_known(expected),
        )

    @staticmethod
    def from_batch(batch: Batch) -> InterchangeBatch:
        """Clean prompts as bases, counterfactual ones as sources; the label is the first foil, the
        base's own the first answer.

        Raises:
            BadPairs: a pair without foils.
        """
        if not len(batch):
            raise BadPairs("A batch needs at least one interchange; got none.")
        labels, own = batch.foils[:, :1], batch.answers[:, :1]
        lacking = (batch.foils != NO_TOKEN).sum(dim=1) == 0
        if bool(lacking.any()):
            name = batch.ids[int(lacking.int().argmax())]
            raise BadPairs(f"Pair {name}: its label has no tokens, as the pair has no foil.")
        last = torch.full((1, 2, len(batch)), batch.n_tokens - 1, device=batch.clean.device)
        return InterchangeBatch(
            base=batch.clean,
            base_mask=batch.mask,
            source=batch.counterfactual,
            source_mask=batch.mask,
            labels=labels,
            base_labels=own if own.shape[1] and bool((own != NO_TOKEN).any()) else None,
            names=(LAST,),
            places=last,
            ids=batch.ids,
            groups=batch.groups,
            kinds=("",) * len(batch),
            alignment=batch.alignment,
        )

    @staticmethod
    @checked
    def from_pairs(
        pairs: Sequence[Pair | InterchangePair], model: Any, *, prepend: Sequence[int] = ()
    ) -> InterchangeBatch:
        """Tokenize pairs, of lengths that may differ; see `mechassay.prompts.interchanges`.

        Every part that both prompts of all pairs have gives the columns "part.first" and
        "part.last", and "part", which is its last token.

        Args:
            pairs: pairs of a task (the base is the clean prompt), or interchanges.
            model: a model, or a tokenizer.
            prepend: tokens before every prompt, with a tokenizer; a model has its own.

        Raises:
            BadUsage: neither a tokenizer nor a model that has one.
            BadPairs: no pairs; one that cannot be aligned, by its id.
        """
        kind = str(pairs.source.get("counterfactual", "")) if isinstance(pairs, Pairs) else ""
        texts = [
            pair if isinstance(pair, InterchangePair) else InterchangePair.from_pair(pair, kind)
            for pair in pairs
        ]
        tokenizer, head = _tokenizer(model, prepend)
        rows: list[InterchangeTokens] = []
        for pair, row in zip(texts, interchange_tokens(texts, tokenizer), strict=True):
            if isinstance(row, Misaligned):
                raise BadPairs(f"Pair {pair.id}: {row.message}.")
            rows.append(row)
        return _of_texts(texts, rows, head, tokenizer)

    # --- as data ----------------------------------------------------------------------------------

    def _plain(self) -> list[dict[str, Any]]:
        """Every row as plain values."""
        table = self._table()
        expected = table.pop("value", None)
        rows = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
        for row, value in zip(rows, expected or (), strict=False):
            row |= {} if value is None else {"value": value}
        return rows

    def _table(self) -> dict[str, list[Any]]:
        """What rows say, by name; columns are indices into a prompt's own tokens."""
        begins = [
            (width - lengths).tolist()
            for width, lengths in (
                (self.base.shape[1], self.base_lengths),
                (self.source.shape[1], self.source_lengths),
            )
        ]
        own = [None] * len(self) if self.base_labels is None else _unpadded(self.base_labels)
        ends: list[int] = self.column(LAST)[0].tolist()
        table: dict[str, list[Any]] = {
            "id": list(self.ids),
            "group": list(self.groups),
            "kind": list(self.kinds),
            "base": [
                row[begin : end + 1]
                for row, begin, end in zip(self.base.tolist(), begins[0], ends, strict=True)
            ],
            "source": token_rows(self.source, self.source_mask),
            "label": _unpadded(self.labels),
            "base_label": own,
        }
        places = {
            name: [
                [a - begin, b - start]
                for a, b, begin, start in zip(x.tolist(), y.tolist(), *begins, strict=True)
            ]
            for name, (x, y) in self.columns.items()
            if name != LAST
        }
        table["columns"] = [
            {name: at[row] for name, at in places.items()} for row in range(len(self))
        ]
        if self.values is not None:
            table["value"] = [None if math.isnan(x) else x for x in self.values.tolist()]
        return table

    @property
    def content_hash(self) -> str:
        """SHA-256 of the rows, in order: padding and teacher forcing change nothing."""
        return _hash(self._plain())

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame.

        Raises:
            MissingExtra: pandas is not installed.
        """
        return data_frame(self._table())

    @checked
    def save(self, path: str | Path) -> Path:
        """Write the rows as JSON lines, prompts without what is teacher-forced; the first line has
        the counts and the hash.
        """
        rows = self._plain()
        counts = {name: dict(getattr(self, name)) for name in ("alignment", "absent")}
        head = {"kind": KIND, "format": FORMAT, **counts, "hash": _hash(rows)}
        lines = (json.dumps(row, ensure_ascii=False) for row in [head, *rows])
        return write_text(Path(path), "\n".join(lines) + "\n")

    @staticmethod
    @checked
    def load(path: str | Path) -> InterchangeBatch:
        """A batch written by `save`.

        Raises:
            BadFile: missing, truncated, foreign or changed.
        """
        try:
            # Not splitlines: a name may hold a separator that JSON leaves as it is.
            lines = Path(path).read_text("utf-8").removesuffix("\n").split("\n")
            head, *rows = (json.loads(row) for row in lines)
            if head.get("kind") != KIND or head.get("format") != FORMAT:
                raise BadFile(f"{path}: holds no interchanges of this version.")
            if _hash(rows) != head["hash"]:
                raise BadFile(f"{path}: truncated or changed: its rows have another hash.")
            batch = InterchangeBatch.from_tokens(
                [row["base"] for row in rows],
                [row["source"] for row in rows],
                [row["label"] for row in rows],
                base_labels=[row["base_label"] for row in rows],
                columns={
                    name: tuple([row["columns"][name][side] for row in rows] for side in (0, 1))
                    for name in rows[0]["columns"]
                },
                ids=[row["id"] for row in rows],
                groups=[row["group"] for row in rows],
                kinds=[row["kind"] for row in rows],
                values=[row.get("value") for row in rows],
            )
            counts = {k: MappingProxyType(head[k]) for k in ("alignment", "absent")}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise BadFile(f"{path}: not a file of interchanges ({first_line(error)}).") from None
        return replace(batch, **counts)


InterchangesLike = (
    InterchangeBatch | InterchangePair | Pair | Batch | Sequence[InterchangePair | Pair]
)
"""What interventions take: one pair, several, or a batch."""


def _of_texts(
    pairs: Sequence[InterchangePair],
    rows: Sequence[InterchangeTokens],
    head: list[int],
    tokenizer: Any,
) -> InterchangeBatch:
    """The batch of interchanges that have been tokenized."""
    columns: dict[str, Any] = {}
    absent: dict[str, str] = {}
    for name in dict.fromkeys(n for pair in pairs for n in (*pair.base_spans, *pair.source_spans)):
        if not tokenizer.is_fast:
            absent[name] = (
                f"The column {name!r} needs a tokenizer with character offsets;"
                f" {type(tokenizer).__name__} has none."
            )
            continue
        lacking = [
            (pair.id, side)
            for pair, row in zip(pairs, rows, strict=True)
            for side, parts in (("base", row.base_parts), ("source", row.source_parts))
            if name not in parts
        ]
        if lacking:
            (first, side), many = lacking[0], len(lacking) - 1
            more = f", nor have {many:,} other prompts" if many else ""
            absent[name] = f"Pair {first}: its {side} has no token {name!r}{more}."
            continue
        if name in TAKEN:
            continue
        for suffix, end in (("", 1), (".first", 0), (".last", 1)):
            columns[name + suffix] = (
                [len(head) + row.base_parts[name][end] for row in rows],
                [len(head) + row.source_parts[name][end] for row in rows],
            )
    batch = InterchangeBatch.from_tokens(
        [head + row.base for row in rows],
        [head + row.source for row in rows],
        [row.label for row in rows],
        base_labels=[row.base_label for row in rows],
        columns=columns,
        ids=[pair.id for pair in pairs],
        groups=[pair.group for pair in pairs],
        kinds=[pair.kind for pair in pairs],
        values=[pair.value for pair in pairs],
    )
    counts = {
        "cut": sum(row.cut > 0 for row in rows),
        "alternatives": sum(len(pair.labels) > 1 for pair in pairs),
    }
    return replace(batch, alignment=MappingProxyType(counts), absent=MappingProxyType(absent))


def _tokenizer(model: Any, prepend: Sequence[int]) -> tuple[Any, list[int]]:
    """A tokenizer, and the tokens that come before every prompt."""
    tokenizer = tokenizer_of("InterchangeBatch", model)
    if tokenizer is None:
        raise BadUsage(
            "InterchangeBatch needs a tokenizer, or a model with a .tokenizer; got None. Use"
            " InterchangeBatch.from_tokens(...) without one."
        )
    return tokenizer, list(getattr(model, "prepend", prepend))


def _names_free(columns: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Columns whose names mean nothing else."""
    taken = next((name for name in columns or {} if name in TAKEN), None)
    if taken is not None:
        raise BadUsage(
            f"columns has {taken!r}, which means the {taken} token{'s' * (taken == 'all')} of"
            " prompts; choose another name."
        )
    return columns or {}


def _known(values: list[float] | None) -> Float[Tensor, "n"] | None:
    """What is expected of each row; None where it is in no row."""
    if values is None or all(map(math.isnan, values)):
        return None
    return torch.tensor(values, dtype=torch.float64)


def _unpadded(tokens: Sequence[Any] | Tensor) -> list[list[int]]:
    """The tokens of each row, which may be one token, several, or None."""
    rows = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
    lists = ([] if row is None else row for row in rows)
    listed = (list(row) if isinstance(row, Sequence | Tensor) else [row] for row in lists)
    return [[int(token) for token in row if int(token) != NO_TOKEN] for row in listed]


def _placed(
    name: str, side: str, at: Any, rows: Sequence[list[int]], width: int, ids: Sequence[str]
) -> Int[Tensor, "n"]:
    """Columns of a padded table, of indices into a prompt's own tokens."""
    given = at.tolist() if isinstance(at, Tensor) else at
    own: list[int] = [given] * len(rows) if isinstance(given, int) else list(given)
    if len(own) != len(rows):
        raise BadPairs(
            f"columns[{name!r}] needs an index for each of {len(rows)} {side} prompts; got"
            f" {len(own)}."
        )
    for index, row, id in zip(own, rows, ids, strict=True):
        if not -len(row) <= index < len(row):
            raise BadPairs(
                f"Pair {id}: its {side} has {len(row)} tokens, and no token {index}, which is its"
                f" column {name!r}."
            )
    columns = [width - len(row) + index % len(row) for index, row in zip(own, rows, strict=True)]
    return torch.tensor(columns, dtype=torch.long)


def _chosen(names: tuple[str, ...], rows: list[int]) -> tuple[str, ...]:
    if len(rows) < 2:
        return tuple(names[row] for row in rows)
    return itemgetter(*rows)(names)


def _trimmed(labels: Int[Tensor, "n m"]) -> Int[Tensor, "n k"]:
    """Labels without columns in which no row has a token; one column at least."""
    longest = int((labels != NO_TOKEN).sum(dim=1).max()) if len(labels) else 0
    return labels[:, : max(1, longest)]


def _range_text(lengths: Int[Tensor, "n"]) -> str:
    if not len(lengths):
        return "none"
    least, most = int(lengths.min()), int(lengths.max())
    return str(least) if least == most else f"{least} to {most}"


def _hash(rows: Sequence[Mapping[str, Any]]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False).encode())
        digest.update(b"\n")
    return digest.hexdigest()
