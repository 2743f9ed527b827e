"""Raters compared: counted by hand, one claim, nobody, coin throws, and the file that settles.

Agreement: worked by hand, published examples, independent implementations, simulation.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from helpers.judges import CODES, made_judgments, plain_judgments, quoted
from mechassay.claims.comparison import (
    coincidences,
    compare,
    confusion,
    exact_share,
    kappas_by_chance,
    ordinal_alpha,
    sign_test,
    unweighted_kappa,
    weighted_kappa,
)
from mechassay.claims.judgments import Judgments, judgments_of, read_judgments
from mechassay.claims.pages import ClaimsComparisonPage
from mechassay.cli.main import main
from mechassay.errors import BadUsage
from mechassay.results.page import Report, markdown
from mechassay.testing import check_record

YES, HALF, NO = (dict.fromkeys(CODES, status) for status in ("YES", "PARTIAL", "NO"))


def by(name: str, *rows: dict[str, str], **more: str) -> Judgments:
    """A rater's judgments of as many claims as there are rows."""
    plain = plain_judgments(statuses=rows[0], rater={"kind": "human", "id": name}, **more)
    for place, row in enumerate(rows[1:], start=1):
        plain["claims"] += plain_judgments(statuses=row, claim={"id": f"c{place}"})["claims"]
    return judgments_of(plain)


def test_disagreements_come_first_and_the_farthest_first() -> None:
    ann = by("Ann", {**YES, "C2": "PARTIAL", "M6": "NA"})
    found = compare([ann, by("Bob", {**YES, "C5": "NO"})])
    assert [item.criterion for item in found.disagreements()] == ["C5", "C2", "M6"]
    exact = found.measure("exact")
    assert (exact.value, exact.n) == (24 / 26, 26)
    assert found.measure("difference").value == pytest.approx((1 - 0.5) / 26)
    assert found.confusion(0, 1, "C5").sum() == 1 and found.confusion(0, 1).sum() == 27
    record = found.record()
    check_record(record)
    assert record.table("confusion").where(first="YES", second="NO").rows()[0]["n"] == 1
    text = markdown(ClaimsComparisonPage().sections(Report([record])))
    assert text.index("C5") < 600 and "| YES | 24 | 0 | 1 |" in text


def test_one_claim_has_no_interval_and_says_so() -> None:
    found = compare([by("Ann", {**YES, "C2": "NO"}), by("Bob", YES)])
    assert math.isnan(found.measure("exact").interval.low)
    assert "One paper cannot validate a rater." in found.reading()
    assert "0.12 to 0.80" in found.reading() or "0.13 to 0.80" in found.reading()
    assert found.reading() in found.record().warnings


def test_several_claims_have_intervals() -> None:
    rng = np.random.default_rng(0)
    rows = [{code: str(rng.choice(["YES", "PARTIAL", "NO"])) for code in CODES} for _ in range(8)]
    other = [
        {code: status if rng.random() < 0.7 else "NO" for code, status in row.items()}
        for row in rows
    ]
    found = compare([by("Ann", *rows), by("Bob", *other)])
    for name in ("exact", "kappa", "alpha", "difference"):
        measure = found.measure(name)
        assert measure.interval.low < measure.value < measure.interval.high
    assert "One paper" not in found.reading()


def test_equal_raters_agree_and_a_constant_is_undefined() -> None:
    mixed = {**YES, "C1": "NO", "C2": "PARTIAL"}
    same = compare([by("Ann", mixed, mixed), by("Bob", mixed, mixed)])
    assert same.measure("kappa").value == same.measure("alpha").value == 1
    assert same.disagreements() == []
    constant = compare([by("Ann", YES, YES), by("Bob", YES, YES)])
    assert constant.measure("exact").value == 1
    assert math.isnan(constant.measure("kappa").value)
    check_record(constant.record())


def test_raters_who_judged_nothing_have_no_agreement() -> None:
    nothing = dict.fromkeys(CODES, "NOT TESTED")
    found = compare([by("Ann", nothing), by("Bob", YES)])
    assert all(math.isnan(measure.value) for measure in found.measures)
    record = found.record()
    check_record(record)
    assert "no criterion was judged by two" in markdown(
        ClaimsComparisonPage().sections(Report([record]))
    )


def test_a_random_rater_agrees_by_chance() -> None:
    rng = np.random.default_rng(5)
    ann, coin = (
        [{code: str(rng.choice(["YES", "PARTIAL", "NO"])) for code in CODES} for _ in range(20)]
        for _ in range(2)
    )
    kappa = compare([by("Ann", *ann), by("coin", *coin)]).measure("kappa")
    assert kappa.interval.contains(0.0) and abs(kappa.value) < 0.2


def test_another_model_stands_beside_and_enters_no_statistic() -> None:
    plain = plain_judgments(statuses=NO, rater={"kind": "execution", "id": "0.1"})
    run = judgments_of({**plain, "scope": "other model"})
    found = compare([by("Ann", YES), by("Bob", {**YES, "C1": "NO"}), run])
    assert {measure.between for measure in found.measures} == {"Ann – Bob", "all raters"}
    assert len(found.disagreements()) == 27
    assert any("another model" in text for text in found.record().warnings)


RATERS = {
    "the paper's judge": ("language model", {"I2": "YES", "I3": "YES", "V3": "YES", "E2": "NO"}),
    "Ann": ("human", {"I2": "PARTIAL", "I3": "YES", "V3": "YES", "E2": "NO"}),
    "executed": ("execution", {"I2": "YES", "I3": "NO", "E2": "NO", "C4": "NO"}),
}


def test_a_judge_a_reader_and_an_execution_stand_beside_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where two of them said something and differ comes first, then what one alone looked at."""
    files = [
        made_judgments(statuses=said, rater={"kind": kind, "id": name}).save(
            tmp_path / f"{name}.json"
        )
        for name, (kind, said) in RATERS.items()
    ]
    found = compare([read_judgments(file) for file in files])
    assert found.names == tuple(RATERS) and all(found.compared)
    rows = {item.criterion: item.statuses for item in found.disagreements()}
    assert list(rows) == ["I3", "I2", "C4", "V3"]
    assert rows["I3"] == ("YES", "YES", "NO") and rows["I2"] == ("YES", "PARTIAL", "YES")
    assert rows["C4"] == ("NOT TESTED", "NOT TESTED", "NO")
    exact = {each.between: each.value for each in found.measures if each.name == "exact"}
    # Of V3 and C4 one side has said nothing: they are in no pair's statistics but the readers'.
    assert exact["the paper's judge – Ann"] == 3 / 4
    assert exact["the paper's judge – executed"] == 2 / 3
    assert exact["Ann – executed"] == 1 / 3
    page = tmp_path / "compare.html"
    with pytest.raises(SystemExit) as done:
        main(["claims", "compare", *map(str, files), "-o", str(page)])
    assert done.value.code == 0
    said = capsys.readouterr().out
    assert said.index("Disagreements") < said.index("I3") < said.index("I2") < said.index("V3")
    assert all(name.replace("'", "&#39;") in page.read_text("utf-8") for name in RATERS)


def test_what_cannot_be_compared() -> None:
    with pytest.raises(BadUsage, match="at least two"):
        compare([by("Ann", YES)])
    other = made_judgments(claim={"id": "another"})
    with pytest.raises(BadUsage, match="No claim is in all files"):
        compare([by("Ann", YES), other])


def test_raters_of_one_name_are_numbered() -> None:
    assert compare([by("Ann", YES), by("Ann", NO)]).names == ("Ann 1", "Ann 2")


def test_the_file_that_settles() -> None:
    ann = made_judgments(statuses={**YES, "C1": "NO"}, evidence={"C1": quoted("no")})
    bob = by("Bob", YES)
    left = compare([ann, bob]).adjudication([ann, bob]).claims[0]
    assert left.criteria["C2"].status == "YES"
    assert left.criteria["C1"].status == "NOT TESTED"
    assert left.criteria["C1"].reason == "To settle. Ann: NO | Bob: YES"
    assert len(left.criteria["C1"].evidence) == 1


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [
        by(name, row).save(tmp_path / f"{name}.json")
        for name, row in (("Ann", YES), ("Bob", {**HALF, "C3": "YES"}))
    ]
    words = ["claims", "compare", *map(str, files), "-o", str(tmp_path / "a.html")]
    words += ["--adjudicate", str(tmp_path / "settle.json"), "--json", str(tmp_path / "a.json")]
    with pytest.raises(SystemExit) as done:
        main(words)
    assert done.value.code == 0
    said = capsys.readouterr().out
    assert "One paper cannot validate a rater" in said and "26 criteria to settle" in said
    assert said.index("Disagreements") < said.index("Agreement")
    assert read_judgments(tmp_path / "settle.json").rater.id == "adjudication"


# Krippendorff's worked example (2011, section C): four observers, twelve units, missing data.
REFERENCE = (
    np.array(
        [
            [1, 2, 3, 3, 2, 1, 4, 1, 2, 0, 0, 0],
            [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, 0, 3],
            [0, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, 0],
            [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, 0],
        ]
    )
    - 1
)


def slow_alpha(ratings: np.ndarray, k: int) -> float:
    """Of all pairs, one by one; the differences are summed over the categories between."""
    pairs = [
        (a, b, (unit >= 0).sum() - 1)
        for unit in ratings.T
        for i, a in enumerate(unit)
        for j, b in enumerate(unit)
        if i != j and a >= 0 and b >= 0
    ]
    n = [sum(1 / m for a, _, m in pairs if a == c) for c in range(k)]

    def far(a: int, b: int) -> float:
        low, high = min(a, b), max(a, b)
        return (sum(n[low : high + 1]) - (n[low] + n[high]) / 2) ** 2

    observed = sum(far(a, b) / m for a, b, m in pairs) / sum(n)
    expected = sum(n[a] * (n[b] - (a == b)) * far(a, b) for a in range(k) for b in range(k)) / (
        sum(n) * (sum(n) - 1)
    )
    return 1 - observed / expected


def test_kappa_by_hand() -> None:
    """Two of four agree; one is off by two steps, one by one."""
    counts = confusion(np.array([0, 1, 2, 2]), np.array([0, 1, 0, 1]), 3)
    assert exact_share(counts) == 0.5
    # Observed (4 + 1) / 4; expected over the margins (1, 1, 2) and (2, 2, 0): 26 / 16.
    expected = sum(
        a * b * (i - j) ** 2 for i, a in enumerate((1, 1, 2)) for j, b in enumerate((2, 2, 0))
    )
    assert weighted_kappa(counts) == pytest.approx(1 - 5 * 4 / expected)


def test_kappa_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        first, second = rng.integers(0, 3, (2, 40))
        expected = cohen_kappa_score(first, second, labels=[0, 1, 2], weights="quadratic")
        assert weighted_kappa(confusion(first, second, 3)) == pytest.approx(expected)
        plain = cohen_kappa_score(first, second, labels=[0, 1, 2])
        assert unweighted_kappa(confusion(first, second, 3)) == pytest.approx(plain)


def test_sign_test_by_hand() -> None:
    assert sign_test(4, 0) == sign_test(0, 4) == 0.125
    assert sign_test(3, 0) == 0.25 and sign_test(1, 1) == 1
    assert sign_test(5, 1) == pytest.approx(2 * (1 + 6) / 2**6)
    assert math.isnan(sign_test(0, 0))


def test_alpha_of_the_published_example() -> None:
    assert ordinal_alpha(coincidences(REFERENCE, 5)) == pytest.approx(0.815, abs=5e-4)
    assert coincidences(REFERENCE, 5).sum() == 40


def test_alpha_is_that_of_all_pairs_one_by_one() -> None:
    rng = np.random.default_rng(1)
    for raters in (2, 3, 5):
        ratings = rng.integers(-1, 3, (raters, 30))
        fast = ordinal_alpha(coincidences(ratings, 3))
        assert fast == pytest.approx(slow_alpha(ratings, 3))


def test_perfect_reversed_and_constant() -> None:
    up = np.array([0, 1, 2, 0, 1, 2])
    assert weighted_kappa(confusion(up, up, 3)) == 1
    assert weighted_kappa(confusion(up, 2 - up, 3)) == pytest.approx(-1)
    assert ordinal_alpha(coincidences(np.stack([up, up]), 3)) == 1
    same = np.ones(6, dtype=int)
    assert math.isnan(weighted_kappa(confusion(same, same, 3)))
    assert math.isnan(ordinal_alpha(coincidences(np.stack([same, same]), 3)))


def test_nothing_is_undefined() -> None:
    nothing = np.full(4, -1)
    counts = confusion(nothing, np.arange(4) % 3, 3)
    assert counts.sum() == 0
    assert math.isnan(exact_share(counts)) and math.isnan(weighted_kappa(counts))
    assert math.isnan(ordinal_alpha(coincidences(np.stack([nothing, nothing]), 3)))


def test_tables_together_are_tables_one_by_one() -> None:
    counts = np.random.default_rng(2).integers(0, 5, (4, 3, 3)).astype(float)
    counts += counts.transpose(0, 2, 1)
    for function in (exact_share, weighted_kappa, unweighted_kappa, ordinal_alpha):
        assert function(counts) == pytest.approx([float(function(each)) for each in counts])


def test_raters_who_throw_coins_agree_by_chance() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.integers(0, 3, (2, 20_000))
    assert weighted_kappa(confusion(first, second, 3)) == pytest.approx(0, abs=0.03)
    assert ordinal_alpha(coincidences(np.stack([first, second]), 3)) == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize(("n", "low", "high"), [(27, 0.12, 0.80), (189, 0.37, 0.62)])
def test_one_paper_cannot_validate_a_rater(n: int, low: float, high: float) -> None:
    """A true kappa of .5 is read as anything between these, in 95 of 100 papers."""
    shares = np.array([0.4, 0.2, 0.4])
    rng = np.random.default_rng(0)
    found = kappas_by_chance(n, 0.5, shares, rng)
    assert np.quantile(found, [0.025, 0.975]) == pytest.approx([low, high], abs=0.015)
    # The same raters, drawn one by one.
    first = rng.choice(3, (2000, n), p=shares)
    own = rng.choice(3, (2000, n), p=shares)
    second = np.where(rng.random((2000, n)) < 0.5, first, own)
    slow = [float(weighted_kappa(confusion(a, b, 3))) for a, b in zip(first, second, strict=True)]
    assert np.quantile(slow, [0.025, 0.975]) == pytest.approx([low, high], abs=0.05)
    many = kappas_by_chance(10**6, 0.5, shares, rng, 10)
    assert float(many.mean()) == pytest.approx(0.5, abs=0.01)
