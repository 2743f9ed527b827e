"""Tokens by meaning, in the columns of a batch: whatever the padding,
tokens put before, or tokens written on.
"""

from __future__ import annotations

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mechassay.errors import BadPairs, UnknownName
from mechassay.examples import filled
from mechassay.models.model import Model, make_model
from mechassay.pairs import Pair
from mechassay.testing.tiny import build


def digit_model(*prepend: int) -> Model:
    words = ["[UNK]", *"0123456789", "+", "=", "[BOS]", " ="]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" =|."), behavior="isolated")  # pyright: ignore[reportAttributeAccessIssue]
    return make_model(
        build("gpt2"),
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]"),
        prepend=prepend,
        check=False,
    )


def sums(*operands: tuple[str, str]) -> list[Pair]:
    """27+61= against 61+27=; both sides' answers begin alike, so a token is written on."""
    pairs: list[Pair] = []
    for number, (a, b) in enumerate(operands):
        clean, other = filled("{a}+{b}=", {"a": a, "b": b}), filled("{a}+{b}=", {"a": b, "b": a})
        pairs.append(
            Pair(
                str(number),
                clean.text,
                other.text,
                ("88",),
                ("81",),
                spans=clean.spans,
                counterfactual_spans=other.spans,
            )
        )
    return pairs


@pytest.mark.parametrize("prepend", [(), (13,), (13, 13)])
def test_columns_hold_the_tokens_of_the_part(prepend: tuple[int, ...]) -> None:
    model, pairs = digit_model(*prepend), sums(("27", "61"), ("5", "314"), ("999", "10"))
    batch = model.batch(pairs)
    assert model.tokenizer is not None
    for name, side, parts in (
        ("a", False, ["27", "5", "999"]),
        ("b", False, ["61", "314", "10"]),
        ("b", True, ["27", "5", "999"]),
    ):
        tokens = batch.counterfactual if side else batch.clean
        first = model.positions(pairs, f"{name}.first", counterfactual=side)
        last = model.positions(pairs, name, counterfactual=side)
        for row, part in enumerate(parts):
            assert [
                model.tokenizer.decode([t])
                for t in tokens[row, int(first[row]) : int(last[row]) + 1].tolist()
            ] == [*part]
    assert model.positions(pairs, "last").tolist() == [batch.n_tokens - 1] * 3
    assert [model.tokenizer.decode([t]) for t in batch.clean[:, -1].tolist()] == ["8"] * 3, (
        "the token that was written on"
    )


def test_what_has_no_position() -> None:
    model, pairs = digit_model(), sums(("27", "61"), ("5", "31"))
    with pytest.raises(UnknownName, match="'op1'"):
        model.positions(pairs, "op1")
    bare = Pair("bare", "27+61=", "61+27=", ("88",), ("81",))
    with pytest.raises(BadPairs, match="Pair bare has no token 'a'"):
        model.positions([*pairs, bare], "a")
