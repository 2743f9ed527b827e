"""What scores rank: equal scores, cuts in ties, copies, and the pairs that they were found on."""

from __future__ import annotations

import numpy as np
import torch

from mechassay.circuits.evaluation.ranking import RankingFacts, tied_at
from mechassay.circuits.scores import EdgeScores
from mechassay.testing import tiny

SUBJECT = tiny.subject("gpt2", n_pairs=4)
GRAPH = SUBJECT.model.graph
N = GRAPH.n_edges


def scores(values: np.ndarray, **about: object) -> EdgeScores:
    """Scores of all edges in the order of the graph's matrix."""
    matrix = torch.full(tuple(GRAPH.legal.shape), torch.nan)
    matrix[GRAPH.legal] = torch.tensor(values, dtype=torch.float32)
    return EdgeScores(GRAPH, matrix, about)


def facts(own: EdgeScores) -> RankingFacts:
    return RankingFacts.of(own, SUBJECT.batch)


def test_equal_scores_but_for_noise_are_one_score() -> None:
    noise = 1e-6 * np.random.default_rng(0).normal(size=N)
    assert facts(scores(np.zeros(N))).different == 1
    assert facts(scores(1 + noise)).different == 1
    assert facts(scores(np.arange(N))).different == 2
    assert facts(scores(np.arange(N))).scored == N


def test_a_cut_through_equal_scores_ties() -> None:
    """By hand: 5 edges of 2, 10 of 1, the others about 0."""
    values = np.r_[np.full(5, 2.0), np.full(10, 1.0), 1e-6 * np.arange(N - 15)]
    sizes = [(n + 0.5) / N for n in (0, 3, 5, 8, 15, 20)] + [1.0]
    assert tied_at(scores(values), sizes, "magnitude") == (0, 3, 0, 3, 0, 0, 0)
    assert tied_at(scores(-values), sizes, "magnitude") == (0, 3, 0, 3, 0, 0, 0)


def test_sketches_tell_copies_from_other_rankings() -> None:
    draw = np.random.default_rng(1)
    own = draw.standard_t(2, size=N)
    copy = own + 1e-6 * np.abs(own).max() * draw.normal(size=N)
    other = own + 0.05 * np.abs(own).mean() * draw.normal(size=N)

    def apart(one: np.ndarray, two: np.ndarray) -> float:
        a, b = (np.array(facts(scores(x)).sketch) for x in (one, two))
        return float(np.linalg.norm(a - b) / np.linalg.norm(a))

    assert apart(own, copy) < 1e-4 and apart(own, 7 * own) < 1e-4, "a scale is no difference"
    assert apart(own, other) > 1e-3 and apart(own, -own) > 1
    assert facts(scores(np.zeros(N))).sketch == ()


def test_the_pairs_that_scores_were_found_on() -> None:
    batch = SUBJECT.batch
    own = list(batch.prompt_hashes())
    values = np.arange(N)
    assert (facts(scores(values)).known, facts(scores(values)).shared) == (False, 0)
    assert facts(scores(values, prompts=own[:2])).shared == 2
    assert facts(scores(values, prompts=["0" * 16])).known
    assert facts(scores(values, data_hash=batch.content)).shared == (4 if batch.content else 0)
