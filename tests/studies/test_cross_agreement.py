"""How many circuits a task has: one behaviour, two behaviours, and matrices made by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import t as student

from helpers.two_behaviours import two_behaviours
from mechassay.circuits import EAP, NAP, EAPIGInputs, Random, agreement, evaluate
from mechassay.circuits.circuit import Circuit
from mechassay.errors import BadUsage
from mechassay.models.model import load_model
from mechassay.tasks import load_task
from mechassay.testing.checks import check_record
from mechassay.utils.display import SILENT
from studies.how_many.cross_agreement import CrossAgreement, by_tag, cross_agreement

METHOD = EAPIGInputs(steps=3)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> CrossAgreement:
    folder, names, fruits = two_behaviours(tmp_path_factory.mktemp("two"))
    model = load_model(str(folder))
    kinds = {"names": load_task(str(names)), "fruits": load_task(str(fruits))}
    train = {kind: task.pairs("train", model, limit=24) for kind, task in kinds.items()}
    test = {kind: task.pairs("test", model, limit=24) for kind, task in kinds.items()}
    return cross_agreement(METHOD, model, train, test, 9, progress=SILENT)


def test_two_behaviours_need_two_circuits(two: CrossAgreement) -> None:
    assert np.diagonal(two.agreement) == pytest.approx(1, abs=0.01)
    assert two.agreement[0, 1] == pytest.approx(0, abs=0.01) == two.agreement[1, 0]
    assert two.n_circuits == (2, 2) and two.smallest_set(open_serves=True) == ("names", "fruits")
    assert two.verdict().startswith("The 2 kinds need 2 circuits of 9 edges.")
    assert "The circuit of another kind loses at most 1.00" in two.verdict()
    assert two.worst[0].low > 0.9 and abs(two.worst[1].value) < 0.01


def test_one_behaviour_needs_one_however_its_pairs_are_called() -> None:
    model, task = load_model("truth-ioi"), load_task("truth-ioi")
    train = list(task.pairs("train", model, limit=48))
    test = list(task.pairs("test", model, limit=60))
    kinds = [f"kind {number}" for number in range(3)]
    cross = cross_agreement(
        METHOD,
        model,
        {kind: train[place::3] for place, kind in enumerate(kinds)},
        {kind: test[place::3] for place, kind in enumerate(kinds)},
        9,
        progress=SILENT,
    )
    assert cross.n_circuits == (1, 1) and "One circuit of 9 edges, found on" in cross.verdict()
    assert cross.has_circuit.all() and cross.n_test == (20, 20, 20) and cross.n_train == (16,) * 3
    # The slow version of one cell.
    half = sorted(np.random.default_rng(0).permutation(16).tolist()[:8])
    circuit = (
        METHOD.score(model, [train[0::3][row] for row in half], progress=SILENT)
        .top(9, by="magnitude")
        .pruned()
    )
    full, empty, own = evaluate(
        model,
        [Circuit.full(model.graph), Circuit.empty(model.graph), circuit],
        test[1::3],
        progress=SILENT,
    )
    assert cross.agreement[0, 1] == pytest.approx(
        float(agreement(full=full, empty=empty, circuit=own))
    )


def test_intervals_are_those_of_a_ratio_for_all_losses_at_once() -> None:
    """By linearisation: the loss is a ratio of means, and its error that of what is left of the
    numerator, times Student's quantile at 1 - .05 / 4 for the four losses of two kinds.
    """
    name, n = "truth-greater-than-trained", 20
    model, task = load_model(name), load_task(name)
    train = list(task.pairs("train", model, limit=12))
    test = list(task.pairs("test", model, limit=2 * n))
    halves = {"a": (train[::2], test[::2]), "b": (train[1::2], test[1::2])}
    first, second = ({kind: own[place] for kind, own in halves.items()} for place in range(2))
    cross = cross_agreement(EAP(), model, first, second, 5, progress=SILENT)
    rows = sorted(np.random.default_rng(0).permutation(6).tolist()[:3])
    circuits = [
        EAP()
        .score(model, [own[row] for row in rows], progress=SILENT)
        .top(5, by="magnitude")
        .pruned()
        for own in first.values()
    ]
    ends = [Circuit.full(model.graph), Circuit.empty(model.graph)]
    full, empty, *values = evaluate(model, [*ends, *circuits], second["b"], progress=SILENT)
    effect = np.abs(full - empty)
    other, own = (np.maximum(0, effect - np.abs(one - full)) for one in values)
    loss = (own - other).mean() / effect.mean()
    error = np.std(own - other - loss * effect, ddof=1) / math.sqrt(n) / effect.mean()
    half = float(student.ppf(1 - 0.05 / 4 / 2, n - 1)) * error
    assert cross.n_groups == (n, n) and cross.loss[0, 1] == pytest.approx(loss) and loss > 0.3
    assert cross.high[0, 1] - loss == pytest.approx(half, rel=0.1)
    assert loss - cross.low[0, 1] == pytest.approx(half, rel=0.1)


def test_random_circuits_are_no_circuits() -> None:
    model, task = load_model("truth-ioi"), load_task("truth-ioi")
    train = list(task.pairs("train", model, limit=40))
    kinds = {"a": train[:20], "b": train[20:]}
    cross = cross_agreement(Random(), model, kinds, kinds, 9, progress=SILENT)
    assert not cross.has_circuit.any() and cross.n_circuits == (0, 0)
    assert cross.verdict().startswith("No kind has a circuit of 9 edges:")
    assert math.isnan(cross.worst[0].value) and cross.record().measures[2].n_undefined == 40


def made(loss: list[list[float]], spread: float = 0.02, other: float = 0.0) -> CrossAgreement:
    """A matrix of losses whose own circuits keep .9."""
    lost = np.array(loss)
    n = len(lost)
    around = np.where(np.eye(n, dtype=bool), 0, spread)
    same = np.full(n, other)
    return CrossAgreement(
        tuple("abcdef"[:n]), 10, (10,) * n, (8,) * n, (20,) * n, (20,) * n,
        0.9 - lost, lost, lost - around, lost + around, same, same - 0.01, same + 0.01,
    )  # fmt: skip


class TestSets:
    def test_a_circuit_that_serves_two_of_three(self) -> None:
        cross = made([[0, 0.02, 0.5], [0.4, 0, 0.6], [0.5, 0.5, 0]])
        assert cross.n_circuits == (2, 2)
        assert cross.smallest_set(open_serves=False) == ("a", "c")

    def test_what_is_open_counts_either_way(self) -> None:
        cross = made([[0, 0.1], [0.5, 0]], spread=0.05)
        assert cross.n_circuits == (1, 2)
        assert cross.verdict().startswith(
            "The 2 kinds need at least 1, at most 2 circuits of 10 edges."
        )

    def test_a_kind_whose_samples_fail_each_other_has_no_circuit(self) -> None:
        assert not made([[0, 0.0], [0.0, 0]], other=0.3).has_circuit.any()
        low = made([[0, 0.0], [0.0, 0]])
        weak = CrossAgreement(**{**vars(low), "agreement": low.agreement - 0.5})
        assert not weak.has_circuit.any()

    def test_nothing_that_ablation_changes_is_undefined(self) -> None:
        cross = made([[0, 0.0], [0.0, 0]])
        lost = CrossAgreement(**{**vars(cross), "agreement": np.full((2, 2), math.nan)})
        assert lost.n_circuits == (0, 0) and "No kind" in lost.verdict()

    def test_one_kind_alone_has_a_circuit(self) -> None:
        low = made([[0, 0.3], [0.3, 0]])
        agreement = low.agreement - np.array([[0, 0], [0, 0.6]])
        alone = replace(low, agreement=agreement)
        assert alone.verdict() == "Of 2 kinds only 'a' has a circuit of 10 edges."

    def test_fewer_than_20_groups_have_no_verdict(self) -> None:
        few = replace(made([[0, 0.0], [0.0, 0]]), n_groups=(30, 19))
        assert few.verdict() == (
            "There is no verdict on how many circuits 2 kinds need: 19 independent groups of pairs"
            " of a kind are fewer than 20."
        )

    def test_the_worst_loss_has_its_own_interval_and_control(self) -> None:
        cross = made([[0, 0.3], [-0.2, 0]], spread=0.05, other=0.01)
        worst, same = cross.worst
        assert (worst.value, worst.low, worst.high) == pytest.approx((0.3, 0.25, 0.35))
        assert same.value == 0.01
        assert cross.worst_of("b").value == -0.2

    def test_the_circuit_that_serves_says_what_it_loses(self) -> None:
        cross = made([[0, 0.3, 0.1], [0.03, 0, 0.05], [0.2, 0.2, 0]])
        assert cross.verdict().startswith(
            "One circuit of 10 edges, found on 'b', serves all 3 kinds: on another it loses at most"
            " 0.050 [0.030, 0.070]. The circuit of another kind loses at most 0.300 [0.280, 0.320]"
        )


def test_a_record_gives_the_result_again(two: CrossAgreement, tmp_path: Path) -> None:
    again = CrossAgreement.of_record(two.record())
    assert again.verdict() == two.verdict() and again.n_groups == (24, 24)
    for name in ("agreement", "loss", "low", "high", "other_sample", "other_low", "other_high"):
        assert getattr(again, name) == pytest.approx(getattr(two, name), nan_ok=True)
    stored = CrossAgreement.load(two.save(tmp_path / "two.safetensors"))
    assert stored.verdict() == two.verdict()
    check_record(two.record())


@pytest.mark.parametrize("size", [0, -1, 0.0, 10**6])
def test_a_circuit_has_some_edges_of_the_model(size: int | float) -> None:
    model, task = load_model("truth-ioi"), load_task("truth-ioi")
    pairs = task.pairs("train", model, limit=2)
    kinds = {"a": pairs, "b": pairs}
    with pytest.raises(BadUsage, match="has 1 to .* edges, or a share of them"):
        cross_agreement(METHOD, model, kinds, kinds, size, progress=SILENT)


def test_scores_of_nodes_are_refused() -> None:
    model, task = load_model("truth-ioi"), load_task("truth-ioi")
    pairs = task.pairs("train", model, limit=2)
    kinds = {"a": pairs, "b": pairs}
    with pytest.raises(BadUsage, match="by their edges; nap scores"):
        cross_agreement(NAP(), model, kinds, kinds, 9, progress=SILENT)


def test_table_columns_and_picture(two: CrossAgreement) -> None:
    table = two.table()
    assert table.keys == ("circuit", "pairs") and len(table) == 4 + 2
    assert table.where(circuit="names", pairs="fruits").numbers("loss") == pytest.approx(
        1, abs=0.01
    )
    assert list(two.columns()) == list(table.columns)
    figure = two.plot()
    assert isinstance(figure, Figure)
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == ["names", "fruits", "another sample"]
    assert repr(two) == "CrossAgreement(kinds=2, edges=9, circuits=(2, 2))"


def test_pairs_by_tag_and_bad_requests() -> None:
    model, task = load_model("truth-ioi"), load_task("truth-ioi")
    pairs = list(task.pairs("train", model, limit=6))
    with pytest.raises(BadUsage, match="has no tag 'mood'; its tags are"):
        by_tag(pairs, "mood")
    tagged = [replace(pair, tags={"mood": "ba"[i % 2]}) for i, pair in enumerate(pairs)]
    assert by_tag(tagged, "mood") == {"a": tagged[1::2], "b": tagged[0::2]}
    one = {"a": pairs}
    with pytest.raises(BadUsage, match="between 2 to 16 kinds"):
        cross_agreement(METHOD, model, one, one, 9, progress=SILENT)
    few = {"a": pairs[:5], "b": pairs[5:]}
    with pytest.raises(BadUsage, match="Two samples need 2 training pairs; 'b' has 1"):
        cross_agreement(METHOD, model, few, few, 9, progress=SILENT)
