"""How prompts are built: the strata within which the labels of a field can be compared.

A task draws its template and its words independently. All prompts of a pool have the same number of
tokens, and this selection ties what was drawn together: a template with a long text of its own is
left only with short words. Where the template matters, a long word then looks worse than it is.

Among prompts of one template whose word for a field has one number of tokens, the selection says
the same about everything else, whichever word it is: labels are independent of the rest of the
prompt again. So the stratum of a prompt, for a field, is

    (template, number of tokens of the field's text)

For the template itself it is the number of tokens of the template's own text. The template is the
text without its parts. Where it hardly ever comes twice (texts of random words), the prompts have
none, and the number of tokens is the stratum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mechassay.adversarial.pools import Pool
from mechassay.alignment import encode
from mechassay.examples import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEMPLATE = "template"
REPEATS = 2
"""Prompts that a template, or a label, has on average at least."""


def skeleton(prompt: Prompt) -> str:
    """A prompt's text with the names of its parts in their places;
    of several names at one place the first.
    """
    text, done = "", 0
    for name, (begin, end) in sorted(prompt.spans.items(), key=lambda item: item[1]):
        if begin >= done and end > begin:
            text, done = f"{text}{prompt.text[done:begin]}{{{name}}}", end
    return text + prompt.text[done:]


def strata_of(
    pool: Pool, names: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> tuple[str, ...]:
    """The stratum of every prompt for a field, or for several that divide the prompts alike.

    Args:
        names: parts of the prompts, or "template". A prompt without the part has 0 tokens for it.
    """
    lengths = [_lengths(pool, name, tokenizer) for name in names]
    templates = tuple(map(skeleton, pool.prompts))
    if TEMPLATE in names or len(set(templates)) > len(pool) / REPEATS:
        templates = ("",) * len(pool)
    return tuple(
        f"{text} {' '.join(map(str, row))}" for text, *row in zip(templates, *lengths, strict=True)
    )


def _lengths(pool: Pool, name: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens of a part, or what is left of the prompt without its outermost parts,
    for each prompt.
    """
    if name != TEMPLATE:
        return _counted(
            [_piece(prompt, *prompt.spans.get(name, (0, 0))) for prompt in pool.prompts], tokenizer
        )
    rows = [
        [_piece(prompt, begin, end) for begin, end in _outermost(prompt)] for prompt in pool.prompts
    ]
    flat = iter(_counted([piece for row in rows for piece in row], tokenizer))
    return [pool.tokens.shape[1] - sum(next(flat) for _ in row) for row in rows]


def _outermost(prompt: Prompt) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for begin, end in sorted(prompt.spans.values()):
        if end > begin and (not found or begin >= found[-1][1]):
            found.append((begin, end))
    return found


def _piece(prompt: Prompt, begin: int, end: int) -> str:
    """A part with the space before it, which tokenizers write together."""
    return (
        prompt.text[begin - (begin > 0 and prompt.text[begin - 1] == " ") : end]
        if end > begin
        else ""
    )


def _counted(pieces: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens of each piece; the same few words come again and again, so each is written once."""
    different = list(Counter(pieces))
    size = {
        piece: len(ids) for piece, ids in zip(different, encode(tokenizer, different), strict=True)
    }
    return [size[piece] for piece in pieces]
