"""Distribution shift: what is left out by hand, intervals that hold together, perfect and worthless
circuits, a model that fails, and what is refused.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mechassay.adversarial.shift import (
    DistributionShift,
    PromptKind,
    ShiftExperiment,
    ShiftPage,
    together,
)
from mechassay.errors import BadUsage
from mechassay.results.page import Report, markdown
from mechassay.runs.run import run
from mechassay.tasks import load_task
from mechassay.tasks.ioi import ioi_words
from mechassay.tasks.ioi_shift import SHIFTS
from mechassay.testing import check_record
from mechassay.utils.display import SILENT

TEMPLATES = tuple(f"t{n % 8}" for n in range(80))


def kind(
    name: str, share: float, *, right: float = 1.0, noise: float = 0.05, seed: int = 0
) -> PromptKind:
    """Prompts of which a circuit leaves out about this share."""
    rng = np.random.default_rng(seed)
    empty = 2 + 0.2 * rng.standard_normal(80)
    own = share * empty + noise * rng.standard_normal(80)
    answers = (np.arange(80) < 80 * right).astype(float)
    return PromptKind(name, own, empty.copy(), empty, answers, TEMPLATES)


def shift(*kinds: PromptKind) -> DistributionShift:
    return DistributionShift("model", "ioi", "eap@60", 60, kinds[0], kinds[1:])


def test_what_is_left_out_by_hand() -> None:
    one = np.array([1.0, 3.0])
    by_hand = PromptKind("home", one, one, np.array([4.0, 4.0]), np.ones(2), ("a", "b"))
    assert by_hand.left_out(by_hand.circuit) == 0.5
    nothing = PromptKind("home", one, one, np.zeros(2), np.ones(2), ("a", "b"))
    assert np.isnan(nothing.left_out(nothing.circuit))


def test_a_shift_that_is_worse_is_found_and_one_that_is_not_is_not() -> None:
    result = shift(kind("home", 0.1), kind("names", 0.1, seed=1), kind("register", 0.4, seed=2))
    names, register = result.differences.values()
    assert names.low < 0 < names.high and 0.2 < register.low < 0.3 < register.high < 0.4
    record = result.record()
    check_record(record)
    text = markdown(ShiftPage().sections(Report([record])))
    assert "It is worse on register" in text and "On names it is not shown to be worse" in text


def test_intervals_of_more_shifts_are_wider_and_hold_together() -> None:
    rng = np.random.default_rng(0)
    draws = rng.standard_normal((12, 4000))
    few = together(np.zeros(2), draws[:2], [1000] * 2)
    many = together(np.zeros(12), draws, [1000] * 12)
    assert 2.1 < few[0].high < 2.4 < 2.7 < many[0].high < 3.1
    inside = np.stack([(e.low < row) & (row < e.high) for e, row in zip(many, draws, strict=True)])
    assert 0.94 < inside.all(axis=0).mean() < 0.96
    # Four templates say less than a thousand.
    assert together(np.zeros(2), draws[:2], [4, 1000])[0].high > 1.8 * few[0].high


def test_the_whole_model_leaves_out_nothing_anywhere() -> None:
    zero = np.zeros(80)
    kinds = [
        PromptKind(name, zero, zero, np.ones(80), np.ones(80), TEMPLATES)
        for name in ("home", "names")
    ]
    result = shift(*kinds)
    assert result.differences["names"].value == 0
    assert not result.record().warnings


def test_a_worthless_circuit_is_said_to_be_one_that_nothing_makes_worse() -> None:
    result = shift(kind("home", 1.0), kind("names", 1.0, seed=1))
    assert any("so that a shift can hardly make it worse" in w for w in result.record().warnings)


def test_where_the_model_fails_the_behaviour_is_gone() -> None:
    record = shift(kind("home", 0.1), kind("secret", 0.1, right=0.5, seed=1)).record()
    assert any("secret: the model itself is right on 50" in text for text in record.warnings)
    assert "The model itself fails on secret." in markdown(ShiftPage().sections(Report([record])))


def test_shifted_prompts_have_one_kind_of_other_words() -> None:
    train, test = ioi_words("train"), ioi_words("test")
    fields = ("names", "objects", "places", "templates")
    for name in SHIFTS:
        words = load_task(f"ioi-shift:kind={name}").split_words("test")  # pyright: ignore[reportAttributeAccessIssue]
        changed = {field for field in fields if getattr(words, field) != getattr(train, field)}
        expected = {
            "none": set[str](),
            "all": set(fields),
            "register": {"templates"},
            "secret": {"templates", "objects"},
        }.get(name, {name})
        assert changed == expected
        if name in fields:
            assert getattr(words, name) == getattr(test, name)
    home = load_task("ioi-shift:kind=none")
    train_rows, test_rows = (
        [example.prompt.text for example in home.examples(split, limit=40)]
        for split in ("train", "test")
    )
    assert train_rows != test_rows


def test_a_run_on_a_ground_truth_and_another_task_of_its_words(tmp_path: Path) -> None:
    experiment = ShiftExperiment(
        "truth-ioi-trained",
        ("truth", "random@7"),
        task="truth-ioi-trained",
        shifts=("truth-ioi",),
        n_prompts=24,
    )
    results = run(experiment, tmp_path, progress=SILENT)
    assert not results.failures
    truth, random = results.records
    # The same prompts: no shift at all.
    row = truth.table("prompts").rows()[1]
    assert abs(float(str(row["more"]))) < 1e-6 and float(str(row["left_out"])) < 0.02
    assert float(str(random.table("prompts").rows()[0]["left_out"])) > 0.5
    assert (tmp_path / "report.html").is_file() and truth.plot()


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"task": "greater-than"}, "Name what the circuit of greater-than meets"),
        ({"task": "greater-than", "shifts": ("names",)}, "'names' is one of ioi"),
    ],
)
def test_what_cannot_be_compared_is_refused(changed: dict[str, object], match: str) -> None:
    fields = {"model": "gpt2", "circuits": ("full",), "task": "ioi", **changed}
    with pytest.raises(BadUsage, match=match):
        ShiftExperiment(**fields).kinds()  # pyright: ignore[reportArgumentType]
