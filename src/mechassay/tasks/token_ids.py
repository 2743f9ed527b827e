"""Token ids of a file as text, and whether they are of this tokenizer.

An id means nothing without the tokenizer it was made with, and any tokenizer has some token of most
ids. An id is read as the text that it adds to its prompt. A file is refused where

- the tokenizer has no such id, or would not read the text as that id;
- some ids are words with a space before them and some are not: those that continue prompts are
  mostly of one kind, and a foreign tokenizer mixes them.

That does not find every foreign file, so what the first row's ids are read as is a note of the
pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mechassay.alignment import encode
from mechassay.errors import BadPairs
from mechassay.tasks.rows import Row

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

    def texts(self, rows: Sequence[Row]) -> list[Continuations]:
        """The text that each row's token ids add to its prompt.

        A token is decoded after its prompt, as some tokenizers write a space before a word only
        there.

        Raises:
            BadPairs: ids of another tokenizer, see the module.
        """
        tokenizer = self.tokenizer
        prompts = encode(tokenizer, [row.clean for row in rows])
        before = tokenizer.batch_decode(prompts)
        asked = [
            (place, int(token))
            for place, row in enumerate(rows)
            for token in (*row.answers, *row.foils)
        ]
        for place, token in asked:
            if token >= len(tokenizer):
                raise BadPairs(
                    f"{self.path}: row {rows[place].number}: there is no token {token}; the"
                    f" tokenizer has {len(tokenizer):,}."
                )
        whole = tokenizer.batch_decode([[*prompts[place], token] for place, token in asked])
        texts = [text[len(before[place]) :] for (place, _), text in zip(asked, whole, strict=True)]
        again = encode(
            tokenizer,
            [rows[place].clean + text for (place, _), text in zip(asked, texts, strict=True)],
        )
        for (place, token), text, ids in zip(asked, texts, again, strict=True):
            if ids != [*prompts[place], token]:
                raise BadPairs(
                    f"{self.path}: row {rows[place].number}: token {token} is {text!r} after its"
                    " prompt, which this tokenizer does not read as that token; was the file made"
                    " for another model?"
                )
            self._check_kind(rows[place], token, text)
        each = iter(texts)
        found = [
            (tuple(next(each) for _ in row.answers), tuple(next(each) for _ in row.foils))
            for row in rows
        ]
        if rows and not self.note:
            (right, wrong), row = found[0], rows[0]
            self.note = (
                f"answers and foils are token ids; row {row.number} is read as {_listed(right)}"
                f" against {_listed(wrong)}. If these are not the words that were meant, the file"
                " is of another tokenizer"
            )
        return found

    def _check_kind(self, row: Row, token: int, text: str) -> None:
        spaced = text[:1].isspace()
        said = f"row {row.number}: {token} is {text!r}"
        self._first.setdefault(spaced, said)
        if not row.clean[-1:].isspace() and len(self._first) == 2:
            raise BadPairs(
                f"{self.path}: some token ids are words with a space before them and some are not"
                f" ({self._first[True]}; {self._first[False]}): was the file made for another"
                " model? Texts in columns answer and foil fit any."
            )


def _listed(texts: Sequence[str]) -> str:
    return ", ".join(map(repr, texts[:3])) + (
        f" and {len(texts) - 3} more" if len(texts) > 3 else ""
    )
