"""Every registered method keeps the contract, on sequential, parallel and post-norm models.

Methods that need gradients under no-grad, under inference mode,
and on a model that was made there.

Corrupted prompts that are handed round:
by hand, by what must stay, and by what has nobody to give.
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from mechassay.circuits import EdgeScores, Random
from mechassay.circuits.evaluation.ablation import OptimalAblation
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.method import PAIRINGS, paired
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.models.graph import Graph
from mechassay.models.model import make_model
from mechassay.prompts.batch import Batch
from mechassay.tasks import load_task
from mechassay.testing.checks import check_method
from mechassay.testing.tiny import build, subject, token_pairs
from mechassay.utils.display import SILENT

# Methods that train masks take thousands of steps by default, and a search one run an edge that it
# keeps; a few show whether they keep the contract.
SHORT: dict[str, dict[str, Any]] = {
    "acdc": {"threshold": 0.5},
    "acdc-top": {"threshold": 0.5, "edges": 30},
    "edge-pruning": {"steps": 6},
    "matryoshka": {"steps": 6, "batch_size": 2},
    "subnetwork-probing": {"steps": 6},
    "ugs": {"steps": 6, "batch_size": 2, "samples": 2},
}


@pytest.mark.few(9)
@pytest.mark.parametrize("family", ["gpt2", "neox", "gemma2"])
@pytest.mark.parametrize("name", METHODS.names())
def test_method(name: str, family: str) -> None:
    tiny = subject(family)
    check_method(METHODS.load(name)(**SHORT.get(name, {})), tiny.model, tiny.batch)


class Careless(Random):
    """Draws from the global generator."""

    def score(self, *args: Any, **kwargs: Any) -> EdgeScores:
        torch.rand(1)
        return super().score(*args, **kwargs)


def test_the_contract_can_fail() -> None:
    tiny = subject("gpt2")
    with pytest.raises(AssertionError, match="global generator"):
        check_method(Careless(), tiny.model, tiny.batch)


NEED = [
    "clean-corrupted",
    "eap",
    "eap-ig-activations:steps=2",
    "eap-ig-inputs:steps=2",
    "nap",
    "nap-ig:steps=2",
] + [f"{name}:steps=3,batch_size=2" for name in ("edge-pruning", "subnetwork-probing", "ugs")]


@pytest.mark.few(2)
@pytest.mark.parametrize("text", NEED)
def test_no_grad_changes_nothing_and_inference_mode_is_refused(text: str) -> None:
    case, method = subject("gpt2"), METHODS.make(text)
    plain = method.score(case.model, case.batch, progress=SILENT).values
    with torch.no_grad():
        torch.testing.assert_close(
            method.score(case.model, case.batch, progress=SILENT).values,
            plain,
            atol=0,
            rtol=0,
            equal_nan=True,
        )
    with (
        torch.inference_mode(),
        pytest.raises(BadUsage, match=r"needs gradients, which torch.inference_mode\(\) forbids"),
    ):
        method.score(case.model, case.batch, progress=SILENT)


def test_optimal_ablation_is_refused_in_inference_mode() -> None:
    case = subject("gpt2")
    with torch.inference_mode(), pytest.raises(BadUsage, match="needs gradients"):
        OptimalAblation(steps=2).learn(case.model, case.batch, progress=SILENT)


def test_a_model_made_in_inference_mode_has_no_gradients() -> None:
    with torch.inference_mode():
        model = make_model(build("gpt2"))
    with pytest.raises(BadUsage, match=r"was loaded under torch.inference_mode\(\)"):
        METHODS.make("eap").score(model, token_pairs(), progress=SILENT)


def test_what_a_graph_keeps_can_be_differentiated_after_inference_mode() -> None:
    graph = Graph(2, 3)
    with torch.inference_mode():
        kept = graph.visible, graph.legal, graph.reader_owner
    assert not any(each.is_inference() for each in kept)


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("ugs", {"lr": float("nan")}, "lr above 0; got nan"),
        ("ugs", {"sparsity": float("inf")}, "sparsity of at least 0; got inf"),
        ("subnetwork-probing", {"sparsity": float("nan")}, "sparsity of at least 0; got nan"),
        ("edge-pruning", {"multiplier_lr": float("nan")}, "multiplier_lr above 0; got nan"),
        ("acdc", {"thresholds": ("a",)}, "finite numbers above 0; got 'a'"),
    ],
)
def test_settings_that_are_no_numbers_are_refused(
    text: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadUsage, match=message):
        METHODS.make(text, **settings)
    with pytest.raises(BadUsage, match="lr above 0; got nan"):
        OptimalAblation(lr=float("nan"))


def test_a_seed_that_is_too_large_is_refused() -> None:
    with pytest.raises(BadUsage, match=r"smaller than 2\^62"):
        METHODS.make(f"random:seed={10**30}").draw(Graph(1, 1))


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
