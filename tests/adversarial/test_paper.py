"""The verdict on a printed table: distances by hand, known answers,
and the models and samples of which nothing can be told.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from mechassay.adversarial import paper as verdict
from mechassay.adversarial.paper import (
    GPT2_WEIGHTS,
    PROMPTS,
    TASKS,
    PaperExperiment,
    closeness,
    other_model,
    verdict_table,
    verdict_text,
)
from mechassay.models.model import make_model
from mechassay.testing.tiny import build

LOW = {"25%": 1.0, "50%": 2.0, "75%": 3.0, "95%": 4.0, "99%": 5.0}


def grids(scale: float, rng: np.random.Generator, n: int = 120) -> np.ndarray:
    """A grid whose percentiles are those of an exponential distribution,
    with some effects of rows.
    """
    return scale * rng.exponential(size=(n, n)) * np.exp(0.1 * rng.normal(size=(n, 1)))


def test_the_distance_by_hand() -> None:
    values = np.full((100, 100), 2.0)
    found = closeness(
        values,
        values * 3,
        {"25%": 1.0, "50%": 2.0, "95%": 4.0, "99%": 100.0, "mean": 7.0},
        100,
        0,
        n_resamples=5,
    )
    # 100 inputs a side do not reach the 99th percentile; |ln 2|, 0 and |ln 1/2| are left, and ln 6,
    # ln 3, |ln 1.5|.
    assert found.compared == ("25%", "50%", "95%")
    assert found.circuit == pytest.approx(2 * math.log(2) / 3) and found.empty == pytest.approx(
        (math.log(6) + math.log(3) + math.log(1.5)) / 3
    )
    assert found.low == found.high == pytest.approx(found.circuit - found.empty)
    assert found.closer_to == "the circuit"


@pytest.mark.parametrize(
    ("mine", "theirs", "answer"),
    [(1.0, 4.0, "the circuit"), (0.05, 1.0, "the empty circuit"), (1.0, 1.0, "cannot be told")],
)
def test_known_answers(mine: float, theirs: float, answer: str) -> None:
    """A table of an exponential distribution, and circuits that have it or not."""
    rng = np.random.default_rng(7)
    table = {
        name: float(np.quantile(grids(1.0, rng, 400), p))
        for name, p in (("25%", 0.25), ("50%", 0.5), ("75%", 0.75), ("95%", 0.95))
    }
    found = closeness(grids(mine, rng), grids(theirs, rng), table, 120, 1, n_resamples=200)
    assert (
        found.closer_to.startswith(answer)
        and found.low <= found.circuit - found.empty <= found.high
    )


def test_two_circuits_that_are_alike_are_seldom_told_apart() -> None:
    """95 % intervals: at most one in ten of 40 comparisons of the same with the same."""
    table = {
        name: float(-math.log(1 - p))
        for name, p in (("25%", 0.25), ("50%", 0.5), ("75%", 0.75), ("95%", 0.95))
    }
    wrong = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        found = closeness(grids(1.0, rng), grids(1.0, rng), table, 120, seed, n_resamples=100)
        wrong += not found.closer_to.startswith("cannot")
    assert wrong <= 4


def test_what_is_below_the_printed_precision_counts_as_it() -> None:
    found = closeness(
        np.full((100, 100), -1e-6),
        np.ones((100, 100)),
        {"50%": 0.0, "95%": 0.0},
        100,
        0,
        n_resamples=5,
    )
    assert found.circuit == 0 and found.empty == pytest.approx(math.log(100))


def test_too_few_prompts() -> None:
    found = closeness(np.ones((99, 300)), np.ones((99, 300)), LOW, 99, 0)
    assert (
        found.closer_to
        == "cannot be told: 99 prompts a side are too few for the 95th percentile, which takes 100"
    )
    assert verdict_text("ioi", found) == f"ioi: what table 3 is closer to {found.closer_to}."
    assert verdict_table({"ioi": found}).texts[0][2:] == ("–",) * 4


def test_other_models() -> None:
    tiny = make_model(build("gpt2", torch.float32, 0))
    assert other_model(tiny, "ioi").endswith("is not GPT-2 small")
    assert other_model(tiny, "docstring").endswith("has not the shape of attn-only-4l")


def test_gpt2_is_told_by_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in of GPT-2's shape: with its first weights it is GPT-2,
    with others another model of that shape.
    """
    tiny = make_model(build("gpt2", torch.float32, 0))
    graph, decoder = tiny.graph, tiny.decoder
    monkeypatch.setattr(verdict, "GPT2_SHAPE", (graph.n_layers, graph.n_heads, decoder.d_model))
    monkeypatch.setattr(verdict, "GPT2_VOCABULARY", decoder.embedding.shape[0])
    assert other_model(tiny, "greater-than") != ""
    embedding = decoder.embedding.clone()
    embedding[0, :3] = torch.tensor(GPT2_WEIGHTS)
    same = replace(tiny)
    vars(same)["decoder"] = replace(decoder, embedding=embedding)
    assert other_model(same, "greater-than") == ""


def test_unmatched_pairs_have_one_template() -> None:
    plans = PaperExperiment("gpt2", "attn").experiments()
    assert {name: plan.same for name, plan in plans.items()} == {
        f"{task}-{pairs}": ("template",) if pairs == "unmatched" else ()
        for task in TASKS
        for pairs in ("unmatched", "matched")
    }
    assert {name: plan.task for name, plan in plans.items()} == {
        f"{task}-{pairs}": PROMPTS[pairs][task] for pairs in PROMPTS for task in TASKS
    }
