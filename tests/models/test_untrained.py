"""A model with random weights: the same architecture, and nothing else is touched."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

import mechassay as ma
from families import families
from mechassay.errors import BadUsage, UnknownName
from mechassay.models.model import Model, make_model
from mechassay.models.untrained import untrained
from mechassay.testing.tiny import build, subject, with_words, write_attn_only


def logits(model: Model) -> torch.Tensor:
    return model.hf(torch.tensor([[3, 1, 4, 1, 5]])).logits


@pytest.mark.parametrize("name", families())
@pytest.mark.filterwarnings("error")
def test_it_has_the_architecture_and_other_weights(name: str) -> None:
    model = make_model(build(name), name=name, prepend=(1,))
    before = copy.deepcopy(model.hf.state_dict())
    other = untrained(model)
    assert type(other.hf) is type(model.hf)
    assert other.name == f"untrained:{name}" and other.prepend == (1,)
    theirs = other.hf.state_dict()
    assert {k: v.shape for k, v in theirs.items()} == {k: v.shape for k, v in before.items()}
    assert other.graph == model.graph
    matrices = [k for k, v in before.items() if v.ndim == 2 and v.is_floating_point()]
    assert matrices and not any(torch.equal(theirs[k], before[k]) for k in matrices)
    assert all(torch.equal(v, before[k]) for k, v in model.hf.state_dict().items())
    assert not any(p.requires_grad for p in other.hf.parameters())
    # No dropout: it says the same twice.
    assert not other.hf.training and torch.equal(logits(other), logits(other))


def test_a_seed_says_which_and_the_global_generator_stays() -> None:
    model = subject("gpt2").model
    state = torch.get_rng_state()
    first, again, other = untrained(model, 3), untrained(model, 3), untrained(model, 4)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(logits(first), logits(again))
    assert not torch.equal(logits(first), logits(other))


def test_dtype_and_tokenizer_are_those_of_the_model() -> None:
    hf, tokenizer = with_words()
    model = make_model(hf.to(torch.float64), tokenizer, name="words")
    other = untrained(model)
    assert other.dtype == torch.float64 and other.tokenizer is model.tokenizer


def test_a_trained_ground_truth_no_longer_does_its_task() -> None:
    model, task = ma.load_model("truth-ioi-trained"), ma.load_task("truth-ioi")
    examples = task.examples("test", limit=40)
    scored = ma.tasks.behaviour.score_prompts
    prompts = [each.prompt for each in examples]
    assert scored(model, prompts).greedy.mean() == 1
    assert scored(untrained(model), prompts).greedy.mean() < 0.3


def test_the_copy_has_a_name_that_every_command_takes(tmp_path: Path) -> None:
    by_name = ma.load_model("untrained:truth-ioi")
    by_hand = untrained(ma.load_model("truth-ioi"))
    assert by_name.name == by_hand.name == "untrained:truth-ioi"
    assert by_name.tokenizer is not None and not by_name.hf.training
    tokens = torch.tensor([[1, 2, 3]])
    assert torch.equal(by_name.hf(tokens).logits, by_hand.hf(tokens).logits)
    assert ma.load_model("untrained:gym-neox@step128").name == "untrained:gym-neox@step128"
    with pytest.raises(UnknownName, match="truth-ioi"):
        ma.load_model("untrained:truth-io")
    write_attn_only(tmp_path / "mine")
    with pytest.raises(BadUsage, match="whose class draws weights"):
        ma.load_model(f"untrained:{tmp_path / 'mine'}")


def test_a_model_without_a_class_of_transformers_is_refused(tmp_path: Path) -> None:
    write_attn_only(tmp_path / "mine")
    with pytest.raises(BadUsage, match="a model of transformers, whose class draws weights"):
        untrained(ma.load_model(tmp_path / "mine"))
