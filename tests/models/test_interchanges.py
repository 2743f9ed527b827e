"""Interchanges for a model: whatever pairs they are given as, checked, on its device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mechassay.errors import BadPairs
from mechassay.interchange import InterchangeBatch
from mechassay.interchange_pairs import InterchangePair
from mechassay.models.model import Model, make_model
from mechassay.pairs import NO_TOKEN, Pair
from mechassay.testing.tiny import build

VOCABULARY = ["[UNK]", *"0123456789", "+", "=", "[BOS]"]


@pytest.fixture(scope="module")
def model() -> Model:
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")  # pyright: ignore[reportAttributeAccessIssue]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
    return make_model(build("gpt2"), fast, prepend=(13,), check=False)


def pair(**changes: Any) -> Pair:
    return Pair("p", "2+3=", "9+8=", ("5",), ("17",), **changes)


def test_all_forms_of_pairs_are_taken(model: Model) -> None:
    text = InterchangePair("p", "2+3=", "9+8=", "17", "5")
    batch = model.interchanges(text)
    assert batch.base.tolist() == [[13, 3, 11, 4, 12]]
    assert batch.labels.tolist() == [[2, 8]] and batch.base.device == model.device
    for given in (pair(), [pair()], [text], batch, InterchangeBatch.from_pairs([text], model)):
        assert model.interchanges(given).content_hash == batch.content_hash
    mixed = model.interchanges([pair(), replace(text, id="q", source="10+8=")])
    assert mixed.source_lengths.tolist() == [5, 6]
    of_batch = model.interchanges(model.batch([pair()]))
    assert of_batch.labels.tolist() == [[2]], "a batch has the first tokens of foils alone"
    assert of_batch.base.tolist() == batch.base.tolist()


def test_what_is_no_pair_is_refused(model: Model) -> None:
    with pytest.raises(BadPairs, match=r"Pairs of prompts are needed.*got 'ioi'"):
        model.interchanges("ioi")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadPairs, match=r"Pairs of prompts are needed.*got 3"):
        model.interchanges([pair(), 3])  # pyright: ignore[reportArgumentType]
    mute = replace(model, tokenizer=None)
    with pytest.raises(BadPairs, match=r"no tokenizer; pass InterchangeBatch\.from_tokens"):
        mute.interchanges([pair()])
    rows = InterchangeBatch.from_tokens([[1, 2], [3]], [[4], [5, 6, 7]], [8, 9])
    assert mute.interchanges(rows).content_hash == rows.content_hash


def test_tokens_and_lengths_that_the_model_does_not_have(model: Model) -> None:
    size = len(model.decoder.embedding)
    assert model.decoder.positions is not None
    longest = len(model.decoder.positions)
    good: dict[str, Any] = {"base": [[1], [2]], "source": [[3], [4]], "labels": [5, 6]}
    for changes, said in (
        ({"base": [[1], [size]]}, f"Pair 1: its base has the token id {size}"),
        ({"source": [[-1], [1]]}, "Pair 0: its source has the token id -1"),
        ({"labels": [5, [6, size]]}, f"Pair 1: its label has the token id {size}"),
        ({"base_labels": [-2, None]}, "Pair 0: its base label has the token id -2"),
        ({"source": [[3], [4] * (longest + 1)]}, f"Pair 1 has {longest + 1} tokens"),
        ({"base": [[3] * longest, [4]], "labels": [[1, 2], 3]}, f"Pair 0 has {longest + 1} tokens"),
    ):
        with pytest.raises(BadPairs, match=said):
            model.interchanges(InterchangeBatch.from_tokens(**{**good, **changes}))
    most = {"base": [[3] * longest, [4]], "source": [[3], [4] * longest]}
    whole = InterchangeBatch.from_tokens(**{**good, **most})
    assert len(model.interchanges(whole).teacher_forced()) == 2
    assert NO_TOKEN not in model.interchanges(whole).base


def test_the_last_columns_predict_the_labels_tokens(model: Model) -> None:
    """Against a plain run of each prompt with its label, token by token."""
    batch = model.interchanges(
        InterchangeBatch.from_tokens(
            [[1, 2, 3], [4, 5, 6, 7, 8], [9]], [[1], [2], [3]], [[1, 2], [3], [4, 5, 6]]
        )
    )
    forced = batch.teacher_forced()
    m = forced.labels.shape[1]
    mask = forced.base_mask.long()
    with torch.no_grad():
        places = (mask.cumsum(1) - 1).clamp(min=0)
        all_logits = model.hf(forced.base, attention_mask=mask, position_ids=places).logits[:, -m:]
        for row, (base, said) in enumerate([([1, 2, 3], [1, 2]), ([4, 5, 6, 7, 8], [3])]):
            for j, token in enumerate(said):
                alone = model.hf(torch.tensor([base + said[:j]])).logits[0, -1]
                column = m - len(said) + j
                assert forced.targets[row, column] == token
                torch.testing.assert_close(all_logits[row, column], alone, rtol=1e-4, atol=1e-4)
