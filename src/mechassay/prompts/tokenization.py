"""From characters to tokens: what a prompt is continued with, and where its parts stand.

*Continuations.* An answer is text; a model sees tokens, and tokenizers cut text differently. So
each continuation is tokenized together with its prompt, and a pair is compared at the first token
that tells its answers from its foils:

    common   = longest common prefix of prompt + continuation, over all answers and foils
    prompt   = its tokens as far as they agree with `common`          (the rest is `cut`)
    run      = prompt tokens, then the rest of `common`               (which is `forced`)
    answers  = the tokens that follow in the answers; foils likewise

"27 + 61 =" with " 88" against " 81" is run as "27 + 61 = 8" with "8" against "1" where digits are
tokens, and as it stands where 88 is one. What answers and foils share cancels in the difference of
their log-probabilities. The counterfactual prompt is cut and forced alike. A token that begins both
an answer and a foil is left out of both; a pair in which no token is left is `Misaligned`.

A continuation can merge with the end of its prompt (" 12" and "00" are " 1200"). A continuation
that changes another number of the prompt's tokens than most continuations of the pair is left out.
A file of pairs decides this number once for all rows (`tasks.file_splits.readings`).

*Special tokens.* A prompt begins with the special tokens that the tokenizer puts before every text,
once, even if the text itself begins with them. Special tokens that the tokenizer appends (EOS) are
left out. Special tokens that are written in the text stay.

*Positions.* A part of a prompt is a span of characters; its tokens are those that overlap it, by
the tokenizer's offsets. A mark of a space that a tokenizer writes as a token of its own ("▁|27")
has the offsets of the character after it; it is no part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from mechassay.errors import BadUsage, UnknownName

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


Span = tuple[int, int]
"""Begin and end of a part of a text, in characters; the end is excluded."""

LENGTHS = "unequal lengths"
ALIKE = "answers and foils begin alike"
UNKNOWN = "a word unknown to the tokenizer"
NOTHING = "a continuation without tokens"
MERGES = "merges with the end of the prompt"


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
        special: whether a prompt begins, as text, with the tokens that the tokenizer puts before
            every text; they are not put there twice.
    """

    clean: list[int]
    counterfactual: list[int]
    answers: list[int]
    foils: list[int]
    cut: int = 0
    forced: int = 0
    partial: bool = False
    special: bool = False


ALIGNMENTS = {
    "partial": "answers and foils are compared by their first token; in {} they have more",
    "forced": "in {}, tokens that answers and foils share are run after the prompt",
    "cut": "in {}, the prompt is run without its last tokens, which what follows it would change",
    "special": "{} begin with the tokenizer's special tokens, which are not added again",
}
"""What was done to pairs' tokens, as in `Aligned`, with how many pairs for the braces."""


def counted_alignments(rows: Iterable[Aligned]) -> dict[str, int]:
    """Count the pairs with each kind of `ALIGNMENTS`."""
    counts = dict.fromkeys(ALIGNMENTS, 0)
    for row in rows:
        for how in counts:
            counts[how] += bool(getattr(row, how))
    return counts


def alignment_notes(counts: Mapping[str, int], n: int) -> dict[str, str]:
    """Describe how the tokens of `n` pairs were aligned, a sentence a kind."""
    done = {how: text for how, text in ALIGNMENTS.items() if counts.get(how)}
    return {how: text.format(f"{counts[how]} of {n} pairs") for how, text in done.items()}


def compared(aligned: Aligned, tokenizer: Any) -> str:
    """Say which tokens an aligned pair compares: "after '... the year 17' the model is asked for
    '32' (id 17) against '11' (id 4)"; "" for a pair without answers.
    """
    if not aligned.answers or not aligned.foils or not hasattr(tokenizer, "decode"):
        return ""

    def listed(ids: Sequence[int]) -> str:
        texts = [f"{str(tokenizer.decode([token]))!r} (id {token})" for token in ids[:SHOWN]]
        more = f" and {len(ids) - SHOWN} more" if len(ids) > SHOWN else ""
        return ", ".join(texts) + more

    end = str(tokenizer.decode(aligned.clean[-END_TOKENS:]))
    dots = "... " if len(aligned.clean) > END_TOKENS else ""
    return (
        f"after {dots + end.lstrip()!r} the model is asked for {listed(aligned.answers)} against"
        f" {listed(aligned.foils)}"
    )


SHOWN, END_TOKENS = 2, 8
"""Answers, and last tokens of the prompt, in the sentence of `compared`."""


@dataclass(frozen=True)
class Misaligned:
    """Why a pair's prompts cannot be compared: a kind to count by, and a message."""

    reason: str
    message: str


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Encode texts with the special tokens that the tokenizer puts before a text, once, and
    without the special tokens that it appends.
    """
    before = _tokens_before(tokenizer)
    encoded = _plain(tokenizer, texts)["input_ids"] if texts else []
    return [[*_missing(before, ids), *ids] for ids in encoded]


def encode_with_offsets(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]
) -> tuple[list[list[int]], list[list[Span]]]:
    """Encode texts as `encode` does, and return the characters of every token.

    Raises:
        BadUsage: a tokenizer without character offsets.
    """
    if not tokenizer.is_fast:
        raise BadUsage(
            f"Token positions need a tokenizer with character offsets; {type(tokenizer).__name__}"
            " has none."
        )
    if not texts:
        return [], []
    before = _tokens_before(tokenizer)
    encoded = _plain(tokenizer, texts, return_offsets_mapping=True)
    heads = [_missing(before, ids) for ids in encoded["input_ids"]]
    ids = [[*head, *own] for head, own in zip(heads, encoded["input_ids"], strict=True)]
    rows = zip(heads, encoded["offset_mapping"], strict=True)
    return ids, [[*((0, 0) for _ in head), *map(tuple, own)] for head, own in rows]


def _plain(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], **options: Any) -> Any:
    """Tokenize texts without adding special tokens."""
    return tokenizer(
        list(texts),
        padding=False,
        add_special_tokens=False,
        return_attention_mask=False,
        verbose=False,
        **options,
    )


def _tokens_before(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the special tokens that a tokenizer puts before every text."""
    whole, own = (
        list(ids[0])
        for ids in (tokenizer(["a"])["input_ids"], _plain(tokenizer, ["a"])["input_ids"])
    )
    start = next((n for n in range(len(whole)) if own and whole[n : n + len(own)] == own), None)
    if start is not None:
        return whole[:start]
    # The vocabulary has no such word and no token for unknown words: special tokens are left.
    end: Any = tokenizer.eos_token_id
    appended = set() if end == tokenizer.bos_token_id else {end}
    special = set(tokenizer.all_special_ids) - appended
    return list(takewhile(special.__contains__, whole))


def _missing(before: Sequence[int], ids: Sequence[int]) -> Sequence[int]:
    """Return the tokens to put before a text: none if the text begins with them."""
    return () if before and list(ids[: len(before)]) == list(before) else before


def continued(prompt: Sequence[int], whole: Sequence[Sequence[int]], *, force: bool) -> Continued:
    """Where continuations, tokenized with their prompt, part from it or, if `force`, each other."""
    common = _shared([tuple(ids) for ids in whole])
    kept = len(_shared([tuple(prompt), common]))
    stop = len(common) if force else kept
    rests = tuple(tuple(ids[stop:]) for ids in whole)
    return Continued(kept, len(prompt) - kept, tuple(common[kept:stop]), rests)


def n_merged(prompt: Sequence[int], whole: Sequence[int]) -> int:
    """Return how many of a prompt's last tokens a continuation changes.

    Args:
        prompt: token ids of the prompt.
        whole: token ids of the prompt with the continuation, tokenized together.
    """
    return len(prompt) - len(_shared([tuple(prompt), tuple(whole)]))


def usual_merging(counts: Iterable[int]) -> int:
    """Return the commonest of several values of `n_merged`; of equally common values the least,
    which keeps more of the prompts.
    """
    common = Counter(counts)
    return max(common, key=lambda count: (common[count], -count), default=0)


def _shared(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The longest common prefix: that of the first and the last in order is common to all."""
    first, last = min(rows), max(rows)
    agree = (a == b for a, b in zip(first, last, strict=False))
    return first[: sum(1 for _ in takewhile(bool, agree))]


def align(
    texts: Sequence[tuple[str, str]],
    answers: Sequence[Sequence[str]],
    foils: Sequence[Sequence[str]],
    tokenizer: PreTrainedTokenizerBase,
) -> list[Aligned | Misaligned]:
    """Tokens of (clean, counterfactual) prompts, and those that tell answers from foils."""
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
    before = _tokens_before(tokenizer)
    head = str(tokenizer.decode(before)).strip() if before else ""
    pairs: list[Aligned | Misaligned] = []
    for clean, other, right, wrong, own in zip(cleans, others, answers, foils, texts, strict=True):
        rows = [next(whole) for _ in (*right, *wrong)]
        pair = _align(clean, other, (*right, *wrong), rows, len(right), unknown)
        if head and isinstance(pair, Aligned) and any(text.startswith(head) for text in own):
            pair = replace(pair, special=True)
        pairs.append(pair)
    return pairs


def _align(
    clean: list[int],
    other: list[int],
    texts: tuple[str, ...],
    whole: list[list[int]],
    n_answers: int,
    unknown: int | None,
) -> Aligned | Misaligned:
    if len(clean) != len(other):
        lengths = f"clean has {len(clean)} tokens, counterfactual has {len(other)}"
        return Misaligned(LENGTHS, f"{lengths}; they must be equally long")
    if not texts:
        return Aligned(clean, other, [], [])
    merged = [n_merged(clean, ids) for ids in whole]
    for text, ids, n in zip(texts, whole, merged, strict=True):
        if unknown is not None and ids[len(clean) - n :][:1] == [unknown]:
            return Misaligned(UNKNOWN, f"the tokenizer does not know {text!r}")
    if len(set(merged)) > 1:
        # Cutting the prompt for one continuation would compare the others by the prompt's tokens.
        left = [place for place, n in enumerate(merged) if n == usual_merging(merged)]
        n_left = sum(place < n_answers for place in left)
        if not n_left or (n_left == len(left) and n_answers < len(texts)):
            gone = texts[next(place for place in range(len(texts)) if place not in left)]
            return Misaligned(MERGES, f"{gone!r} changes the last token of the prompt")
        texts, whole = tuple(texts[place] for place in left), [whole[place] for place in left]
        n_answers = n_left
    # Without foils there is nothing that a shared beginning could cancel against.
    split = continued(clean, whole, force=0 < n_answers < len(texts))
    for text, rest in zip(texts, split.rests, strict=True):
        if not rest:
            message = f"{text!r} written after the prompt adds no token of its own"
            return Misaligned(NOTHING, message)
    first = [rest[0] for rest in split.rests]
    if unknown is not None and unknown in first:
        return Misaligned(UNKNOWN, f"the tokenizer does not know {texts[first.index(unknown)]!r}")
    right, wrong = dict.fromkeys(first[:n_answers]), dict.fromkeys(first[n_answers:])
    both = right.keys() & wrong.keys()
    # The text of a shared token may still go on either way; it counts for neither side.
    kept_right = [token for token in right if token not in both]
    kept_wrong = [token for token in wrong if token not in both]
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
    if end not in ("", "first", "last") or not any(part in parts_of for parts_of in spans):
        known = {part for parts_of in spans for part in parts_of}
        firsts = (f"{part}.first" for part in known)
        raise UnknownName("token position", name, ["last", *known, *firsts])
    tokens = part_tokens(texts, spans, tokenizer)
    return [
        None if part not in parts else parts[part][0 if end == "first" else 1] for parts in tokens
    ]


def part_tokens(
    texts: Sequence[str], spans: Sequence[Mapping[str, Span]], tokenizer: PreTrainedTokenizerBase
) -> list[dict[str, tuple[int, int]]]:
    """The first and the last token of every part of each text, by name, if it has any token.

    Indices are those of `token_position`.

    Raises:
        BadUsage: a tokenizer without character offsets.
    """
    by_text: list[dict[str, tuple[int, int]]] = []
    for ids, row, parts in zip(*encode_with_offsets(tokenizer, texts), spans, strict=True):
        of_text: dict[str, tuple[int, int]] = {}
        for name, (begin, stop) in parts.items():
            inside = [index for index, (a, b) in enumerate(row) if a < stop and b > begin]
            # Two tokens share a character that is written as bytes, or that a mark stands before.
            if (
                len(inside) > 1
                and row[inside[1]][0] < row[inside[0]][1]
                and not str(tokenizer.decode([ids[inside[0]]])).strip()
            ):
                del inside[0]
            if inside:
                of_text[name] = inside[0], inside[-1]
        by_text.append(of_text)
    return by_text


def tokenizer_of(name: str, model: Any) -> Any:
    """A model's tokenizer, or the tokenizer given in its place; None without a model.

    Raises:
        BadUsage: neither has one.
    """
    if model is None:
        return None
    tokenizer = getattr(model, "tokenizer", model)
    # A bare network is callable too; only a tokenizer can tell its special tokens.
    if not hasattr(tokenizer, "unk_token_id"):
        raise BadUsage(
            f"{name} needs a tokenizer, or a model with a .tokenizer, to align prompts; got"
            f" {type(model).__name__} without one."
        )
    return tokenizer
