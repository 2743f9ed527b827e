"""Every registered method keeps the contract, on sequential, parallel and post-norm models.

Methods that need gradients under no-grad, under inference mode,
and on a model that was made there.

Corrupted prompts that are handed round:
by hand, by what must stay, and by what has nobody to give.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from mechassay.circuits import (
    ACDC,
    EAP,
    EdgeScores,
    Ensemble,
    Matryoshka,
    Random,
    resampled,
    score_in_parts,
)
from mechassay.circuits.evaluation.ablation import OptimalAblation
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.method import (
    PAIRINGS,
    Method,
    ScoreInputs,
    method_name,
    paired,
    provenance_of,
    versions_of,
)
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.models.graph import Graph
from mechassay.models.model import Model, make_model
from mechassay.models.objectives import ObjectiveLike
from mechassay.prompts.batch import Batch, PairsLike
from mechassay.tasks import load_task
from mechassay.testing.checks import check_method
from mechassay.testing.tiny import build, subject, token_pairs
from mechassay.truth.ground_truth import load_truth
from mechassay.utils.display import BAR, SILENT, Progress
from mechassay.utils.registry import Registry

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


@dataclass(frozen=True)
class ShortMethod(Method[EdgeScores]):
    """All that an author writes: scores from the inputs, and the cost."""

    name: ClassVar[str] = "short"
    default_objective: ClassVar[str] = "prob_diff"

    def find_scores(self, inputs: ScoreInputs) -> EdgeScores:
        graph = inputs.model.graph
        about = {**provenance_of(self, inputs), "inputs": inputs}
        return EdgeScores.of(graph, torch.ones(graph.legal.shape), about)

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        return 0.0


@dataclass(frozen=True)
class Structural:
    """A method that does not inherit from `Method`."""

    seed: int = 0
    name: ClassVar[str] = "structural"
    version: ClassVar[int] = 3
    mean_of_pairs: ClassVar[bool] = True

    def score(
        self,
        model: Model,
        pairs: PairsLike,
        objective: ObjectiveLike = "logit_diff",
        *,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
    ) -> EdgeScores:
        scores = EAP().score(model, pairs, objective, progress=progress, checkpoint=checkpoint)
        return replace(scores, provenance={**scores.provenance, "method": self.name})

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        return 4.0 * n_pairs


def test_a_method_is_found_scores_and_a_cost(tmp_path: Path) -> None:
    tiny, checkpoint = subject("gpt2"), tmp_path / "file"
    check_method(ShortMethod(), tiny.model, tiny.batch)
    inputs = (
        ShortMethod()
        .score(tiny.model, tiny.batch, "kl", progress=SILENT, checkpoint=checkpoint)
        .provenance["inputs"]
    )
    assert inputs.model is tiny.model and inputs.batch.content == tiny.batch.content
    assert inputs.objective.name == "kl"
    assert inputs.progress is SILENT and inputs.checkpoint == checkpoint


def test_pairs_are_aligned_for_a_method() -> None:
    truth = load_truth("truth-previous-token")
    pairs = truth.task.pairs("test", truth.model, limit=4)
    inputs = ShortMethod().score(truth.model, pairs).provenance["inputs"]
    assert isinstance(inputs.batch, Batch) and len(inputs.batch) == 4


def test_a_method_has_a_default_objective() -> None:
    tiny = subject("gpt2")
    given = {
        method.name: method.score(tiny.model, tiny.batch, progress=SILENT).provenance["objective"]
        for method in (EAP(), ACDC(threshold=0.5), ShortMethod())
    }
    assert given == {"eap": "logit_diff", "acdc": "kl", "short": "prob_diff"}


def test_a_class_with_score_is_a_method(tmp_path: Path) -> None:
    tiny, method = subject("gpt2", n_pairs=8), Structural()
    check_method(method, tiny.model, tiny.batch)
    assert method_name(method) == "structural" and versions_of(method) == [("structural", 3)]
    (again,) = resampled(method, tiny.model, tiny.batch, n=1, over="seeds", progress=SILENT)
    parts = score_in_parts(
        method, tiny.model, tiny.batch, progress=SILENT, checkpoint=tmp_path / "file"
    )
    whole = method.score(tiny.model, tiny.batch, progress=SILENT)
    for scores in (again, parts.scores):
        torch.testing.assert_close(scores.values, whole.values, equal_nan=True)


def test_a_class_with_score_can_be_a_member_and_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny, targets = subject("gpt2"), METHODS.targets()
    monkeypatch.setattr(
        Registry, "targets", lambda self: {**targets, "structural": f"{__name__}:Structural"}
    )
    for method in (
        Ensemble(members="eap+structural"),
        Matryoshka(steps=3, batch_size=2, warm="structural"),
    ):
        check_method(method, tiny.model, tiny.batch)
        versions = method.score(tiny.model, tiny.batch, progress=SILENT).provenance
        assert ("structural", 3) in versions["inner_versions"]


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
        ("acdc", {"thresholds": ("a",)}, "sequence of numbers as thresholds; got \\('a',\\)"),
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
