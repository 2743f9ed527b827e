"""Labels of a random variable: the base's or the source's answer, by a hash of the prompts."""

from __future__ import annotations

from mechassay.causal_models.labels import ExpectedLabels, random_variable
from mechassay.prompts.interchanges import InterchangePair


def pairs(n: int, label: str = "v") -> ExpectedLabels:
    made = [
        InterchangePair(f"p{i}", f"base {i}", f"source {i}", label, base_label=f"b{i}")
        for i in range(n)
    ]
    return ExpectedLabels(made, model="m", variable="v", base_values=[float("nan")] * n, dropped={})


def test_each_is_the_answer_of_its_base_or_of_its_source() -> None:
    answers = {f"p{i}": f"s{i}" for i in range(400)}
    drawn = random_variable(pairs(400), answers)
    of_source = [pair.label == f"s{i}" for i, pair in enumerate(drawn)]
    of_base = [pair.label == f"b{i}" for i, pair in enumerate(drawn)]
    assert all(a != b for a, b in zip(of_source, of_base, strict=True))
    assert 160 < sum(of_source) < 240, "a fair coin"


def test_it_hangs_on_the_prompts_alone() -> None:
    answers = {f"p{i}": f"s{i}" for i in range(50)}
    one, other = (random_variable(pairs(50, label), answers) for label in ("v", "another"))
    assert [p.label for p in one] == [p.label for p in other]
    backwards = pairs(50).take(range(49, -1, -1))
    assert [p.label for p in random_variable(backwards, answers)] == [p.label for p in one][::-1]
    assert [(p.base, p.source, p.base_label) for p in one] == [
        (p.base, p.source, p.base_label) for p in pairs(50)
    ]


def test_a_source_without_an_answer_leaves_the_base_label() -> None:
    assert [p.label for p in random_variable(pairs(30), {})] == [f"b{i}" for i in range(30)]
