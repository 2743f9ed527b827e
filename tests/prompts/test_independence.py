"""Independent pairs: by tokens, over shared counterfactuals, with a pool of counterfactuals."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mechassay.prompts.batch import Batch, contrasts
from mechassay.prompts.independence import POOLED, PROMPTS, apart, independent, n_shared


def batch(clean: Sequence[int], other: Sequence[int], groups: Sequence[str] | None = None) -> Batch:
    """Prompts of two tokens, of which the first says which prompt it is."""
    return Batch.from_tokens(
        [[x, 0] for x in clean],
        [[x, 0] for x in other],
        answers=[1] * len(clean),
        foils=[2] * len(clean),
        groups=groups,
    )


def n_groups(own: Batch) -> int:
    return len(set(independent(own)[0].groups))


def test_pairs_apart_keep_their_groups() -> None:
    own = batch(range(10), range(10, 20))
    grouped, n_pooled = independent(own)
    assert grouped.groups == own.groups and n_pooled == 0
    assert apart(own)[1] == {POOLED: 0, PROMPTS: 10}
    named = batch(range(10), range(10, 20), ["a", "a", *"bcdefghi"])
    assert n_groups(named) == 9


def test_equal_tokens_are_one_group_whatever_their_names() -> None:
    own = batch([1, 2, 1, 2, 3], [11, 12, 11, 12, 13])
    assert n_groups(own) == 3 and apart(own)[1][PROMPTS] == 3


def test_a_shared_counterfactual_links_and_so_does_a_chain() -> None:
    """Pairs 0 to 2 share counterfactuals one after another; pair 3 has the clean prompt of 4."""
    n = 40
    other = list(range(100, 100 + n))
    other[1] = other[0]
    assert n_groups(batch(range(n), other)) == n - 1
    other[3] = 4  # The clean prompt of pair 4.
    assert n_groups(batch(range(n), other)) == n - 2


@pytest.mark.parametrize("kind", ["one for all", "cycle"])
def test_a_pool_of_counterfactuals_links_by_clean_prompts(kind: str) -> None:
    n = 30
    other = [100] * n if kind == "one for all" else [*range(1, n), 0]
    grouped, n_pooled = independent(batch(range(n), other))
    assert len(set(grouped.groups)) == n and n_pooled == n
    repeated = batch([x // 2 for x in range(n)], [100] * n)
    assert n_groups(repeated) == n // 2
    # The task's own groups hold in a pool too.
    assert n_groups(batch(range(n), other, ["a", "a", *map(str, range(n - 2))])) == n - 1


def test_grouping_twice_changes_nothing() -> None:
    own = batch([1, 1, 2, *range(10, 40)], range(50, 83))
    once = independent(own)[0]
    assert independent(once)[0].groups == once.groups


def test_shared_prompts_are_counted_by_clean_prompts() -> None:
    own, others = batch([1, 2, 3], [11, 12, 13]), batch([3, 4], [2, 14])
    hashes = own.token_hashes(), others.token_hashes()
    assert n_shared(*hashes) == 2, "one clean prompt, and one that is a counterfactual there"
    assert n_shared(*hashes, pooled=True) == 1


def test_contrasts_are_words_where_one_word_decides() -> None:
    """The first of two tokens is Ann (1) or Bob (2) and decides the answer."""
    clean = [[1 + n % 2, 10 + n] for n in range(30)]
    other = [[2 - n % 2, 10 + n] for n in range(30)]
    answers, foils = [[1 + n % 2] for n in range(30)], [[2 - n % 2] for n in range(30)]
    own = Batch.from_tokens(clean, other, answers, foils)
    assert len(set(own.contrasts())) == 2
    # Where the answer does not follow from the word, each prompt is a contrast.
    mixed = Batch.from_tokens(
        clean, other, [[1 + n // 15] for n in range(30)], [[2 - n // 15] for n in range(30)]
    )
    assert len(set(mixed.contrasts())) == 30


def test_contrasts_of_prompts_of_unequal_length() -> None:
    """The first word decides; other words are more or fewer in the counterfactual."""
    clean = [(1 + n % 2, 10 + n, 50) for n in range(30)]
    other = [(2 - n % 2, *range(10 + n, 12 + n + n % 3), 50) for n in range(30)]
    answers = [str(1 + n % 2) for n in range(30)]
    assert len(set(contrasts(clean, other, answers))) == 2
    assert len(set(contrasts(clean, [() for _ in clean], answers))) == 2
    assert contrasts([], [], []) == ()
