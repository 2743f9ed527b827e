"""Corrupted prompts that are handed round:
by hand, by what must stay, and by what has nobody to give.
"""

from __future__ import annotations

import re
from itertools import islice

import numpy as np
import pytest
import torch

from mechassay.circuits.pairing import PAIRINGS, paired
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.pairs import Batch
from mechassay.tasks import load_task

LENGTHS = (3, 4, 3, 4, 3, 3, 5)
TEMPLATES = ("a", "a", "b", "a", "a", "b", "a")


def batch() -> Batch:
    """Seven pairs of three lengths; the corrupted prompt of pair i is made of 20 + i alone."""
    clean = [[10 + i] * n for i, n in enumerate(LENGTHS)]
    other = [[20 + i] * n for i, n in enumerate(LENGTHS)]
    return Batch.from_tokens(clean, other, [0] * 7, [1] * 7)


def giver(found: Batch) -> list[int]:
    """The example that each corrupted prompt comes from."""
    return (found.counterfactual[:, -1] - 20).tolist()


def test_matched_is_the_batch_itself() -> None:
    pairs = batch()
    found = paired(pairs, "matched", np.random.default_rng(0))
    assert found.batch is pairs and found.rows == tuple(range(7)) and found.n_alone == 0


@pytest.mark.parametrize("seed", range(20))
def test_random_pairs_have_one_length_and_no_own_prompt(seed: int) -> None:
    pairs = batch()
    found = paired(pairs, "random", np.random.default_rng(seed))
    # The only prompt of five tokens has nobody to exchange with.
    assert found.rows == (0, 1, 2, 3, 4, 5) and found.n_alone == 1
    others = giver(found.batch)
    assert sorted(others) == [0, 1, 2, 3, 4, 5], "a prompt was used twice"
    for row, other in zip(found.rows, others, strict=True):
        assert row != other and LENGTHS[row] == LENGTHS[other]
    assert torch.equal(found.batch.clean, pairs.select(range(6)).clean)
    assert found.batch.answers.tolist() == [[0]] * 6
    assert found.batch.content != pairs.content


@pytest.mark.parametrize("seed", range(20))
def test_pairs_of_one_template_by_hand(seed: int) -> None:
    found = paired(batch(), "same-template", np.random.default_rng(seed), TEMPLATES)
    # 0 and 4 are of three tokens and template a, 2 and 5 of three and b, 1 and 3 of four and a:
    # each takes the other's.
    assert dict(zip(found.rows, giver(found.batch), strict=True)) == {
        0: 4,
        4: 0,
        2: 5,
        5: 2,
        1: 3,
        3: 1,
    }


def test_the_generator_alone_decides() -> None:
    many = Batch.from_tokens(
        [[i] for i in range(50)], [[50 + i] for i in range(50)], [0] * 50, [1] * 50
    )
    one, same, another = (
        paired(many, "random", np.random.default_rng(seed)).batch for seed in (1, 1, 2)
    )
    assert torch.equal(one.counterfactual, same.counterfactual) and one.content == same.content
    assert (
        not torch.equal(one.counterfactual, another.counterfactual)
        and one.content != another.content
    )


def test_every_other_prompt_is_as_likely() -> None:
    """Four prompts: each of the other three in a third of the draws."""
    four = Batch.from_tokens(
        [[i] for i in range(4)], [[20 + i] for i in range(4)], [0] * 4, [1] * 4
    )
    rng = np.random.default_rng(3)
    counts = np.zeros((4, 4))
    for _ in range(3000):
        counts[range(4), giver(paired(four, "random", rng).batch)] += 1
    assert np.diag(counts).sum() == 0
    np.testing.assert_allclose(counts[~np.eye(4, dtype=bool)], 1000, atol=5 * np.sqrt(3000 * 2 / 9))


def test_refusals() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(UnknownName, match=r"pairing.*matched, random, same-template"):
        paired(batch(), "unmatched", rng)
    with pytest.raises(BadUsage, match="needs the template of every pair; 1 of 7 are known"):
        paired(batch(), "same-template", rng, ("a", None, None, None, None, None, None))
    with pytest.raises(BadUsage, match="0 of 7 are known"):
        paired(batch(), "same-template", rng)
    with pytest.raises(
        BadPairs, match="none of 1 pairs has another example of as many tokens and of its template"
    ):
        paired(batch().select([0]), "same-template", rng, ("a",))


@pytest.mark.parametrize("name", ["greater-than", "docstring", "truth-ioi"])
def test_tasks_of_one_template_say_so(name: str) -> None:
    from mechassay.tasks import load_task

    task = load_task(name)
    assert len({task.template(example.tags) for example in task.examples("test", limit=20)}) == 1


def test_every_prompt_of_an_ioi_example_has_the_template_that_the_task_names() -> None:
    task = load_task("ioi")
    for example in islice(task.generate("test", 0), 50):
        template = task.template(example.tags)
        assert template is not None
        pattern = re.compile(re.sub(r"\\\{\w+\\\}", ".+?", re.escape(template)))
        for prompt in (example.prompt, *example.counterfactuals.values()):
            assert pattern.fullmatch(prompt.text)


def test_a_task_does_not_say_what_it_does_not_know() -> None:
    ravel = load_task("ravel")
    assert ravel.template({"template": "x"}) is None
    assert load_task("ioi").template({}) is None
    assert PAIRINGS == ("matched", "random", "same-template")
