"""Token ids of a file as text, and whether they are of this tokenizer.

An id is read as the text that it adds to its prompt. A file is refused where

- the tokenizer has no such id, or would not read the text as that id;
- some ids are words with a space before them and some are not: those that continue prompts are
  mostly of one kind, and a foreign tokenizer mixes them.

That does not find every foreign file, so what the first row's ids are read as is a note.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mechassay.alignment import encode
from mechassay.errors import BadPairs
from mechassay.tasks.pair_rows import PairRow

Continuations = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass
class TokenIds:
    """Reads the token ids of one file.

    Attributes:
        path: of the file, for messages.
        tokenizer: the one they are read with.
        note: what the first row's are.
    """

    path: str
    tokenizer: Any
    note: str = ""
    # The first text of each kind, by whether it begins with a space.
    _first: dict[bool, str] = field(default_factory=dict)

    def texts(self, row: PairRow) -> Continuations:
        """The texts that a row's token ids add to its prompt.

        A token is decoded after its prompt, as some tokenizers write a space before a word only
        there.

        Raises:
            BadPairs: ids of another tokenizer, see the module.
        """
        tokenizer, where = self.tokenizer, f"{self.path}: row {row.place}"
        (prompt,) = encode(tokenizer, [row.clean])
        tokens = (*row.answer_ids, *row.foil_ids)
        if max(tokens) >= len(tokenizer):
            raise BadPairs(
                f"{where}: there is no token {max(tokens)}; the tokenizer has {len(tokenizer):,}."
            )
        before, *whole = tokenizer.batch_decode([prompt, *([*prompt, token] for token in tokens)])
        texts = [text[len(before) :] for text in whole]
        again = encode(tokenizer, [row.clean + text for text in texts])
        for token, text, ids in zip(tokens, texts, again, strict=True):
            if ids != [*prompt, token]:
                raise BadPairs(
                    f"{where}: token {token} is {text!r} after its prompt, which this tokenizer"
                    " does not read as that token; was the file made for another model?"
                )
            self._check_kind(row, token, text)
        n = len(row.answer_ids)
        right, wrong = tuple(texts[:n]), tuple(texts[n:])
        self.note = self.note or (
            f"answers and foils are token ids; row {row.place} is read as {_listed(right)} against"
            f" {_listed(wrong)}. If these are not the words that were meant, the file is of another"
            " tokenizer"
        )
        return right, wrong

    def _check_kind(self, row: PairRow, token: int, text: str) -> None:
        """Refuse a word with a space before it where another has none."""
        spaced = text[:1].isspace()
        said = f"row {row.place}: {token} is {text!r}"
        self._first.setdefault(spaced, said)
        if not row.clean[-1:].isspace() and len(self._first) == 2:
            raise BadPairs(
                f"{self.path}: some token ids are words with a space before them and some are not"
                f" ({self._first[True]}; {self._first[False]}): was the file made for another"
                " model? Texts in columns answer and foil fit any."
            )


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - 3} more" if len(texts) > 3 else ""
    return ", ".join(map(repr, texts[:3])) + more
