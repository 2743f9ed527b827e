"""The first sentences of the page: what earns one, and what does not."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from mechassay.gym.names import shuffled_of
from mechassay.gym.pages import GymPage
from mechassay.gym.verdicts import Beside, ranked, sentences
from mechassay.results.page import Fold, Report, TextTable
from mechassay.results.records import Measure, Record, Spec, Table, Values, provenance

NUMBERS = {"das": 17.4, "das-shuffled": 0.3, "mean": 19.7, "mean-shuffled": 17.7, "vanilla": 19.9}


def record(
    numbers: Mapping[str, float],
    validation: Mapping[str, float] | None = None,
    *,
    accuracy: float = 1.0,
    pairs: int = 25,
    noise: float = 0.5,
    falls: Mapping[str, bool] | None = None,
    task: str = "t",
    untrained: Mapping[str, float] | None = None,
) -> Record:
    """A record whose numbers have intervals of `noise` to both sides.

    Args:
        numbers: odds of test items, by method.
        validation: those of validation items; the same if not given.
        falls: whether the loss of a training still falls.
    """
    n = 2 * pairs

    def measure(name: str, value: float, of: str = "result") -> Measure:
        low, high = value - noise, value + noise
        return Measure(name=name, of=of, value=value, low=low, high=high, n=n, better="up")

    measures = [measure("accuracy", accuracy)]
    for method, value in numbers.items():
        measures.append(measure(f"odds_{method}", value))
        others = [other for other in (shuffled_of(method), "vanilla") if other in numbers]
        for other in (other for other in others if other != method):
            measures.append(
                measure(f"odds_{method}", value - numbers[other], f"difference:{other}")
            )
    for method, value in (untrained or {}).items():
        measures.append(measure(f"odds_{method}", value, "control:untrained model"))
    nan, falling = math.nan, falls or {}
    training = [{"method": method, "still_falling": falling.get(method)} for method in numbers]
    given = {"setting": "", "chosen": True, "n": n, "n_validation": n, **interval("selectivity", 0)}
    candidates = [
        {
            "method": method,
            **given,
            **interval("validation", x),
            **interval("odds", numbers[method]),
        }
        for method, x in (numbers if validation is None else validation).items()
    ]
    place = {"layer": 0, "region": "verb", "chosen": True, "low": nan, "high": nan}
    cells = [{"method": method, **place, "odds": x} for method, x in numbers.items()]
    ids = [str(row) for row in range(n)]
    return Record(
        kind="gym",
        specs={"model": Spec(name="m"), "task": Spec(name=task), "method": Spec(name="")},
        measures=measures,
        tables=[
            Table.of("methods", ("method",), training),
            Table.of("candidates", ("method", "setting"), candidates),
            Table.of("cells", ("method", "layer", "region"), cells),
        ],
        values=Values(
            unit="pair",
            ids=ids,
            groups=[str(row // 2) for row in range(n)],
            columns={"right": [accuracy] * n},
        ),
        provenance=provenance(device="", dtype="", seed=0),
    )


def interval(name: str, value: float) -> dict[str, float]:
    return {name: value, f"{name}_low": value - 1, f"{name}_high": value + 1}


def test_the_best_is_that_with_the_highest_gain_over_its_own_control() -> None:
    first, *more = sentences([record(NUMBERS)])
    assert first == (
        "m, t (accuracy 1.0 [0.5, 1.5]; 50 test items): DAS 17.4 [16.9, 17.9] nats of at most"
        " 19.9 [19.4, 20.4] by the whole vector; with shuffled labels 0.3 [-0.2, 0.8]."
    )
    # 19.7 - 17.7 = 2.0 is above 0, but most of it is there without labels.
    assert more == [
        "Most of its odds with shuffled labels too: difference of means 19.7 [19.2, 20.2], with"
        " shuffled labels 17.7 [17.2, 18.2]."
    ]


def test_controls_never_win() -> None:
    numbers = {"mean-shuffled": 30.0, "vanilla": 20.0, "random": 25.0, "probe": 1.0}
    (best,) = ranked([record(numbers)])
    assert best.method == "probe"
    only = {name: numbers[name] for name in ("vanilla", "random")}
    (said,) = sentences([record(only)])
    assert "only controls were measured: whole vector 20.0 [19.5, 20.5], random direction" in said


def test_validation_items_choose_and_test_items_are_told() -> None:
    numbers = {"probe": 3.0, "probe-shuffled": 0.0, "lda": 9.0, "lda-shuffled": 0.0}
    found = record(numbers, {"probe": 9.0, "probe-shuffled": 0.0, "lda": 3.0, "lda-shuffled": 0.0})
    assert "probe 3.0 [2.5, 3.5] nats, the whole vector was not measured" in sentences([found])[0]


def test_odds_above_the_whole_vector_count_as_much_as_it() -> None:
    numbers = {"das": 9.5, "das-shuffled": 2.0, "probe": 2.5, "probe-shuffled": 0.0, "vanilla": 3.3}
    found = ranked([record(numbers)])
    # min(9.5, 3.3) - 2 = 1.3, and 2.5 - 0.
    assert [(each.method, each.gain) for each in found] == [
        ("probe", pytest.approx(2.5)),
        ("das", pytest.approx(1.3)),
    ]
    said = sentences([record(numbers)])
    assert said[-1] == "More than the whole vector (3.30): DAS 9.5 [9.0, 10.0]."
    alone = sentences([record({name: numbers[name] for name in ("das", "vanilla")})])[0]
    assert "more than the whole vector has (3.3 [2.8, 3.8]); its control with" in alone
    assert "with shuffled labels was not measured" in alone


@pytest.mark.parametrize(("own", "noise"), [(0.4, 0.5), (0.0, 0.1), (5.0, math.nan)])
def test_what_is_not_better_than_its_control_is_no_verdict(own: float, noise: float) -> None:
    numbers = {"das": own, "das-shuffled": 0.1, "vanilla": 9.0}
    first, *_ = sentences([record(numbers, noise=noise)])
    assert first.endswith(", and not better than that.")
    falling = sentences([record(numbers, noise=noise, falls={"das": True})])
    assert falling[1].startswith("Not trained: DAS. The loss still falls")
    assert not any("Not trained" in s for s in sentences([record(numbers, falls={"das": False})]))


def test_two_pairs_are_no_verdict() -> None:
    first, *_ = sentences([record(NUMBERS, pairs=2)])
    assert first.endswith(" No verdict: 2 independent pairs, fewer than 20.")
    assert "No verdict" not in sentences([record(NUMBERS)])[0]


def test_a_task_that_the_model_does_not_do_is_said_and_is_in_no_mean() -> None:
    chance = record({**NUMBERS, "das": 1000.0}, accuracy=0.5, task="chance")
    assert "t (" not in sentences([chance])[0]
    assert sentences([chance])[0].startswith("m, chance (which it does not do: accuracy 0.5")
    both = [record(NUMBERS), chance]
    assert sentences(both)[0].startswith(
        "m, means over the 1 of 2 tasks that it does better than 60 % (accuracy 1.0 [0.5, 1.5];"
        " 50 test items each): DAS 17.4"
    )
    none = sentences([chance, chance])[0]
    assert "m does none of 2 tasks better than 60 %, so there is no behaviour to explain" in none


def test_means_over_tasks_count_where_it_is_better() -> None:
    worse = record({**NUMBERS, "das": 0.5}, task="other")
    first, *more = sentences([record(NUMBERS), worse])
    assert "DAS 8.95 nats of at most 19.90 by the whole vector; with shuffled labels 0.30" in first
    assert first.endswith("and better than that in 1 of 2 tasks.")
    assert more[0] == (
        "Not better than its own control with shuffled labels: DAS 8.95, with shuffled labels 0.30,"
        " in 1 of 2 tasks."
    )


def test_controls_that_have_most_of_it_are_named() -> None:
    numbers = {"das": 9.0, "das-shuffled": 0.0, "vanilla": 9.5, "pca": 4.0, "random": 0.2}
    said = sentences([record(numbers, untrained={"das": 5.0})])
    has = "In a model of random weights DAS has 5.0 [4.5, 5.5]"
    assert said[1] == f"{has}: no trained mechanism is needed for it."
    assert said[2] == "Without any labels: PCA 4.0 [3.5, 4.5]."
    plain = sentences([record({"pca": 4.0, "random": 0.2, "vanilla": 9.5})])
    assert plain[0].endswith("it reads no labels, a random direction has 0.2 [-0.3, 0.7].")


def test_a_page_has_at_most_six_tables_unfolded_and_no_empty_heading() -> None:
    records = [record(NUMBERS, task=name) for name in ("a", "b")]
    assert [table.title for table in GymPage().tables(Report(records))] == [
        "Odds beside those of controls, m",
        "The best method of each task, m",
    ]
    sections = GymPage().sections(Report(records))
    unfolded = [b for section in sections for b in section.blocks if isinstance(b, TextTable)]
    assert len(unfolded) <= 6 and all(section.blocks for section in sections)
    folds = [b for section in sections for b in section.blocks if isinstance(b, Fold)]
    assert folds and all(fold.blocks for fold in folds)
    row = unfolded[0].rows[0]
    assert row.cells[:4] == ("DAS", "17.40", "0.30", "2 of 2")
    assert [each.kind for each in unfolded[0].rows] == ["", "", "control"]
    assert Beside("mean", records).better == 2
