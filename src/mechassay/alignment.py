"""From characters to tokens: what a prompt is continued with, and where its parts stand.

*Continuations.* An answer is text; a model sees tokens, and tokenizers cut text differently: they
merge a space with the word after it, write numbers digit by digit or by threes, and may join the
end of a prompt with what follows. So each continuation is tokenized together with its prompt, and
a pair is compared at the first token that tells its answers from its foils:

    common   = longest common beginning of prompt + continuation, over all answers and foils
    prompt   = its tokens as far as they agree with `common`          (the rest is `cut`)
    run      = prompt tokens, then the rest of `common`               (which is `forced`)
    answers  = the tokens that follow in the answers; foils likewise

"27 + 61 =" with " 88" against " 81" is run as "27 + 61 = 8" with "8" against "1" where digits are
tokens, and as it stands where 88 is one. The beginning that answers and foils share cancels in the
difference of their log-probabilities, so nothing is lost by writing it. The counterfactual prompt
is cut and forced alike. A token that begins both an answer and a foil decides nothing and is left
out of both; a pair in which no token is left is `Misaligned`, with a reason.

*Positions.* A part of a prompt is a span of characters; its tokens are those that overlap it,
found through the tokenizer's offsets, so that they are right for any tokenizer and any padding. A
tokenizer like Llama's writes a mark of a space before the text, and where it does not join the mark
with the first word ("▁|27"), the mark has the offsets of the character after it. It is no part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mechassay.errors import BadUsage, UnknownName

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]
"""Begin and end of a part of a text, in characters; the end is excluded."""

LENGTHS = "unequal lengths"
SAME_TOKENS = "the same tokens in both prompts"
ALIKE = "answers and foils begin alike"
UNKNOWN = "a word unknown to the tokenizer"
NOTHING = "a continuation without tokens"


@dataclass(frozen=True)
class Continued:
    """A prompt's tokens up to where its continuations part, and the continuations from there.

    Attributes:
        kept: how many of the prompt's own tokens are kept; `cut` were left out.
        forced: tokens that all continuations begin with, to be written after the kept ones.
        rests: each continuation's tokens after those.
    """

    kept: int
    cut: int
    forced: tuple[int, ...]
    rests: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Aligned:
    """Both prompts of a pair as equally many tokens, and the next token of each answer and foil.

    Attributes:
        cut: tokens of the prompt that were left out, as continuations change them.
        forced: tokens that answers and foils share, written after the prompt.
        partial: whether an answer or a foil has tokens beyond the compared one.
    """

    clean: list[int]
    counterfactual: list[int]
    answers: list[int]
    foils: list[int]
    cut: int = 0
    forced: int = 0
    partial: bool = False


@dataclass(frozen=True)
class Misaligned:
    """Why the prompts of a pair cannot be compared:
    a kind to count by, and a message about this pair.
    """

    reason: str
    message: str


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of texts, with the special tokens that the tokenizer adds by itself."""
    if not texts:
        return []
    return [
        list(ids)
        for ids in tokenizer(list(texts), padding=False, return_attention_mask=False)["input_ids"]
    ]


def continued(prompt: Sequence[int], whole: Sequence[Sequence[int]], *, force: bool) -> Continued:
    """Where continuations part from their prompt, or from one another.

    Args:
        prompt: the prompt's own tokens.
        whole: tokens of the prompt with each continuation.
        force: go on over the tokens that all continuations share.
    """
    common = _shared([tuple(ids) for ids in whole])
    kept = len(_shared([tuple(prompt), common]))
    stop = len(common) if force else kept
    return Continued(
        kept,
        len(prompt) - kept,
        tuple(common[kept:stop]),
        tuple(tuple(ids[stop:]) for ids in whole),
    )


def _shared(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The longest common beginning: that of the first and the last in order is common to all."""
    first, last = min(rows), max(rows)
    n = next(
        (place for place, (a, b) in enumerate(zip(first, last, strict=False)) if a != b),
        min(len(first), len(last)),
    )
    return first[:n]


def align(
    texts: Sequence[tuple[str, str]],
    answers: Sequence[Sequence[str]],
    foils: Sequence[Sequence[str]],
    tokenizer: PreTrainedTokenizerBase,
) -> list[Aligned | Misaligned]:
    """Tokens of (clean, counterfactual) prompts,
    with the tokens that their answers and foils are compared by.
    """
    cleans = encode(tokenizer, [clean for clean, _ in texts])
    others = encode(tokenizer, [other for _, other in texts])
    written = [
        clean + text
        for (clean, _), right, wrong in zip(texts, answers, foils, strict=True)
        for text in (*right, *wrong)
    ]
    whole = iter(encode(tokenizer, written))
    unknown = tokenizer.unk_token_id
    assert unknown is None or isinstance(unknown, int)
    found: list[Aligned | Misaligned] = []
    for clean, other, right, wrong in zip(cleans, others, answers, foils, strict=True):
        rows = [next(whole) for _ in (*right, *wrong)]
        found.append(_align(clean, other, (*right, *wrong), rows, len(right), unknown))
    return found


def _align(
    clean: list[int],
    other: list[int],
    texts: tuple[str, ...],
    whole: list[list[int]],
    n_answers: int,
    unknown: int | None,
) -> Aligned | Misaligned:
    if len(clean) != len(other):
        return Misaligned(
            LENGTHS,
            f"clean has {len(clean)} tokens, counterfactual has {len(other)}; they must be equally"
            " long",
        )
    if not texts:
        return Aligned(clean, other, [], [])
    # Without foils there is nothing that a shared beginning could cancel against.
    split = continued(clean, whole, force=0 < n_answers < len(texts))
    for text, rest in zip(texts, split.rests, strict=True):
        if not rest:
            return Misaligned(
                NOTHING, f"{text!r} written after the prompt adds no token of its own"
            )
    first = [rest[0] for rest in split.rests]
    if unknown is not None and unknown in first:
        return Misaligned(UNKNOWN, f"the tokenizer does not know {texts[first.index(unknown)]!r}")
    right, wrong = dict.fromkeys(first[:n_answers]), dict.fromkeys(first[n_answers:])
    both = right.keys() & wrong.keys()
    # The text of a shared token may still go on either way; it counts for neither side.
    kept_right, kept_wrong = (
        [t for t in right if t not in both],
        [t for t in wrong if t not in both],
    )
    if both and not (kept_right and kept_wrong):
        return Misaligned(ALIKE, f"an answer and a foil begin with the same token (id {min(both)})")
    keep = len(other) - split.cut
    return Aligned(
        clean=clean[: split.kept] + list(split.forced),
        counterfactual=other[:keep] + list(split.forced),
        answers=kept_right,
        foils=kept_wrong,
        cut=split.cut,
        forced=len(split.forced),
        partial=any(len(rest) > 1 for rest in split.rests),
    )


def token_position(
    texts: Sequence[str],
    spans: Sequence[Mapping[str, Span]],
    name: str,
    tokenizer: PreTrainedTokenizerBase,
) -> list[int | None]:
    """The index of a token of each text, by its meaning.

    Args:
        texts: prompts.
        spans: parts of each prompt by name.
        name: a part, for its last token; or "part.first" or "part.last".

    Returns:
        Indices from 0 at the first token, special tokens included. None where a prompt lacks the
        part.

    Raises:
        UnknownName: no prompt has such a part.
        BadUsage: a tokenizer without character offsets.
    """
    part, _, end = name.partition(".")
    if end not in ("", "first", "last") or not any(part in each for each in spans):
        known = {part for each in spans for part in each}
        raise UnknownName(
            "token position", name, ["last", *known, *(f"{part}.first" for part in known)]
        )
    if not tokenizer.is_fast:
        raise BadUsage(
            f"Token positions need a tokenizer with character offsets; {type(tokenizer).__name__}"
            " has none."
        )
    encoded = tokenizer(
        list(texts), padding=False, return_offsets_mapping=True, return_attention_mask=False
    )
    found: list[int | None] = []
    for row, ids, each in zip(encoded["offset_mapping"], encoded["input_ids"], spans, strict=True):
        begin, stop = each.get(part, (0, 0))
        inside = [index for index, (a, b) in enumerate(row) if a < stop and b > begin]
        # Two tokens share a character where it is written as bytes, or where a mark stands before
        # it.
        if (
            len(inside) > 1
            and row[inside[1]][0] < row[inside[0]][1]
            and not str(tokenizer.decode([ids[inside[0]]])).strip()
        ):
            del inside[0]
        found.append(None if not inside else inside[0] if end == "first" else inside[-1])
    return found
