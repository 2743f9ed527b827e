"""Interchanges of sentences of a gym task, each with its swap: text, no tokens yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mechassay.prompts.interchanges import InterchangePair
from mechassay.utils.arguments import checked
from mechassay.utils.display import NOTEBOOK_ROWS, Tabular, html_facts, html_note, html_table, line

if TYPE_CHECKING:
    from mechassay.prompts.interchange_batch import InterchangeBatch


class GymPairs(Tabular, tuple[InterchangePair, ...]):
    """Interchanges, each followed by its swap.

    Attributes:
        task, split, seed: what they were drawn from.
        tested: the regions at which interventions are tried.
        dropped: interchanges that were left out, by reason.
    """

    task: str
    split: str
    seed: int | None
    tested: tuple[str, ...]
    dropped: Mapping[str, int]

    def __new__(
        cls,
        pairs: Iterable[InterchangePair],
        *,
        task: str,
        split: str,
        seed: int | None,
        tested: Sequence[str],
        dropped: Mapping[str, int] | None = None,
    ) -> GymPairs:
        made = super().__new__(cls, pairs)
        made.task, made.split, made.seed, made.tested = task, split, seed, tuple(tested)
        made.dropped = MappingProxyType(dict(dropped or {}))
        return made

    @checked
    def batch(self, model: Any, *, prepend: Sequence[int] = ()) -> InterchangeBatch:
        """The interchanges as token ids; every region that all sentences have is a column.

        Args:
            model: a model, or a tokenizer.
            prepend: tokens before every prompt, with a tokenizer; a model has its own.

        Raises:
            BadUsage: neither a tokenizer nor a model that has one.
            BadPairs: a pair that cannot be aligned, by its id.
        """
        from mechassay.prompts.interchange_batch import InterchangeBatch

        return InterchangeBatch.from_pairs(list(self), model, prepend=prepend)

    def sentences(self) -> frozenset[str]:
        """All bases and sources."""
        return frozenset(text for pair in self for text in (pair.base, pair.source))

    def columns(self) -> dict[str, list[Any]]:
        """The interchanges by column."""
        return {
            "id": [pair.id for pair in self],
            "type": [pair.tags.get("type", "") for pair in self],
            "base": [pair.base for pair in self],
            "base_label": ["|".join(pair.base_labels) for pair in self],
            "source": [pair.source for pair in self],
            "label": ["|".join(pair.labels) for pair in self],
        }

    def __repr__(self) -> str:
        fields = {
            "task": self.task,
            "split": self.split,
            "n": len(self),
            "sentences": len(self.sentences()),
            "dropped": sum(self.dropped.values()),
        }
        return line("GymPairs", fields)

    def _repr_html_(self) -> str:
        columns = self.columns()
        names = ("type", "base", "base_label", "source", "label")
        rows = list(zip(*(columns[name][:NOTEBOOK_ROWS] for name in names), strict=True))
        more = html_note(f"{len(self) - NOTEBOOK_ROWS:,} more" if len(self) > NOTEBOOK_ROWS else "")
        facts = {
            "interchanges": f"{len(self):,}",
            "sentences": f"{len(self.sentences()):,}",
            "regions": ", ".join(self.tested),
            **{f"dropped: {reason}": f"{n:,}" for reason, n in self.dropped.items()},
        }
        title = f"{self.task}, {self.split}"
        return html_facts(title, facts, html_table(names, rows), more)
