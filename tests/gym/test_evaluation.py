"""All methods on one task: a planted direction is found, and what has to be equal is equal."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.edits import unnoticed
from helpers.planted_gym import U, V, planted_model, planted_task
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.features import DAS
from mechassay.features.training import still_falling
from mechassay.gym import TaskOdds, evaluate, methods, odds
from mechassay.gym.interchanges import CAUSALGYM_2024
from mechassay.gym.task_odds import best_mean, by_item, chosen_regions, mean_of
from mechassay.interventions.site import load_site
from mechassay.models.model import untrained
from mechassay.results.records import Record
from mechassay.utils.display import SILENT

LIMITS = {"train": 80, "validation": 24, "test": 24}
METHODS = ("das:lr=0.1", "probe:l2=1", "mean", "lda", "pca", "k-means", "random", "vanilla")
CONTROLS = ("probe-shuffled:l2=1", "mean-shuffled")


def run(methods: Any = (*METHODS, *CONTROLS), **given: Any) -> TaskOdds:
    given = {"limits": LIMITS, "progress": SILENT, **given}
    return evaluate(planted_model(), planted_task(), methods, **given)


@pytest.fixture(scope="module", name="found")
def the_evaluation() -> TaskOdds:
    return run()


def mean(found: TaskOdds, method: str, of: str = "odds") -> np.ndarray:
    return found[method].odds(of).mean(axis=(0, 1))


@pytest.mark.slow
def test_the_model_is_what_it_is_meant_to_be(found: TaskOdds) -> None:
    assert found.accuracy.value == 1.0 and found.regions == ("noun", "place", "time")
    vanilla = mean(found, "vanilla")
    # Layers from below: at the noun before it is copied, at the last token after it.
    assert vanilla[0, 0] > 3 and vanilla[1, 2] > 3 and vanilla[2, 2] > 3
    elsewhere = [vanilla[place] for place in ((0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1))]
    assert np.abs(elsewhere).max() < 1e-9


@pytest.mark.parametrize("method", ["das:lr=0.1", "probe:l2=1", "mean"])
def test_planted_directions_are_found(found: TaskOdds, method: str) -> None:
    fit = found[method].fits["odds"][0]
    for site, direction in (("resid.0@noun", V), ("resid.1@time", U), ("resid.2@time", U)):
        cosine = abs(float(fit.directions(site)[:, 0].double() @ direction))
        assert cosine > 0.97, (method, site, cosine)
    assert found.chosen(method) == {0: "noun", 1: "time", 2: "time"}
    # What the whole vector does, these do; the heat map is 0 elsewhere.
    vanilla, own = mean(found, "vanilla"), mean(found, method)
    for place in ((0, 0), (1, 2), (2, 2)):
        assert own[place] == pytest.approx(vanilla[place], rel=0.1)
    assert np.abs(own[[0, 0, 1, 1, 2, 2], [1, 2, 0, 1, 0, 1]]).max() < 1e-9
    assert found.estimate(method).low > 3 > 0.5 > found.estimate("random").high


def test_worthless_directions_do_little(found: TaskOdds) -> None:
    right = found.estimate("mean").value
    for method in ("probe-shuffled:l2=1", "random"):
        assert abs(found.estimate(method).value) < 0.1 * right, method
    # A difference of means that chance makes lies where values vary most, as PCA does.
    assert found.difference("mean", "mean-shuffled").low > 0
    # The published rule is never below the other one, and above 0 where there is nothing.
    for method in found.methods:
        by_rule = [
            found.estimate(method, rule=rule).value for rule in (CAUSALGYM_2024, "validation")
        ]
        assert by_rule[0] >= by_rule[1]
    other = run(("random",), limits={**LIMITS, "test": 12}, seeds=range(8))
    means = other["random"].odds("odds").mean(axis=1)
    assert (means.max(axis=2) >= 0).all()


def test_control_labels(found: TaskOdds) -> None:
    assert dict(found.control_labels) == {"one": " dog", "many": " give"}
    for method, each in found.methods.items():
        same = each.fits["odds"][0] is each.fits["control"][0]
        assert same == (not method.startswith("das"))
        difference = each.odds("odds") - each.odds("control")
        np.testing.assert_array_equal(each.odds("selectivity"), difference)
    # Nothing but is and are is read from the stream.
    assert np.abs(found["vanilla"].odds("control")).max() < 1e-9
    own = run(("vanilla", "mean"), control={"one": " is", "many": " are"})
    assert own.estimate("vanilla", "selectivity").value == 0.0
    turned = run(("vanilla",), control=(" are", " is"))
    np.testing.assert_allclose(
        turned["vanilla"].odds("control"), -turned["vanilla"].odds("odds"), atol=1e-12
    )
    none = run(("mean",), control=False)
    assert none.of == ("odds",) and np.isnan(none.columns()["selectivity"][0])


def test_the_stack_is_every_method_on_its_own(found: TaskOdds) -> None:
    """Fits of finders that run by themselves, measured site by site."""
    model = planted_model()
    pairs = planted_task().interchanges("test", model, limit=LIMITS["test"])
    batch = pairs.batch(model)
    for method in METHODS:
        if method == "vanilla":
            continue
        fit = replace(found[method].fits["odds"][0], model=model)
        for site in fit.sites:
            alone = replace(fit, featurizers={site: fit.featurizers[site]})
            values = odds(alone, batch, progress=SILENT)[site]
            region = found.regions.index(str(site.position))
            stacked = found[method].odds("odds")[0, :, site.layer, region]
            np.testing.assert_allclose(values, stacked, atol=1e-9)
    alone = run(("mean",), layers=[1])
    ours = found["mean"].odds("odds")[:, :, [1]]
    np.testing.assert_allclose(alone["mean"].odds("odds"), ours, atol=1e-12)


def test_seeds() -> None:
    found = run(("random", "mean", "das:lr=0.1,steps=3"), seeds=(0, 1, 2))
    assert [each.seeds for each in found.methods.values()] == [3, 1, 3]
    one = run(("random",), seeds=(1,))
    np.testing.assert_array_equal(found["random"].odds("odds")[[1]], one["random"].odds("odds"))
    columns = found.columns()
    assert columns["seed_low"][0] < columns["odds"][0] < columns["seed_high"][0]
    assert columns["seed_low"][1] == columns["seed_high"][1]


def test_shuffled_labels_are_those_of_other_rows(found: TaskOdds) -> None:
    """DAS on labels that are dealt out anew is DAS on a batch with other labels."""
    own = run(("das-shuffled:lr=0.1,steps=5", "random"), seeds=(3,))["das-shuffled:lr=0.1,steps=5"]
    model = planted_model()
    batch = planted_task().interchanges("train", model, limit=LIMITS["train"]).batch(model)
    order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(3))
    other = replace(batch, labels=batch.labels[order])
    das = DAS.profile("causalgym-2024", lr=0.1, steps=5, seed=3)
    fit = das.fit(model, other, ["resid.1@time"], progress=SILENT)
    (ours,) = own.fits["odds"]
    assert ours is own.fits["control"][0] and ours.provenance["shuffled"] == 3
    site = ours.sites.index(load_site("resid.1@time"))
    np.testing.assert_allclose(ours.losses[:, site], fit.losses[:, 0], atol=1e-12)


def test_a_method_stands_beside_itself_on_shuffled_labels(found: TaskOdds) -> None:
    record = found.record()
    values = record.values
    assert values is not None
    for method, control in (("mean", "mean-shuffled"), ("probe:l2=1", "probe-shuffled:l2=1")):
        own = np.array(values.columns[method]) - np.array(values.columns[control])
        less = record.measure(f"odds_{method}", f"difference:{control}")
        beside = record.measure(f"odds_{method}", f"control:{control}")
        assert less is not None and less.value == pytest.approx(own.mean())
        assert beside is not None and beside.value == found.estimate(control).value
    assert record.measure("odds_das:lr=0.1", "control:das-shuffled:lr=0.1") is None
    assert record.measure("odds_pca", "difference:vanilla") is not None


def test_losses_of_a_training_by_hand() -> None:
    found = run(("das:lr=0.1,steps=20", "mean"), seeds=(0, 1), layers=[1, 2])
    das = found["das:lr=0.1,steps=20"]
    # The label is written at the last region of both layers: sites 2 and 5 of six.
    assert das.regions("odds").tolist() == [[2, 2], [2, 2]]
    own = np.stack([fit.losses.numpy()[:, [2, 5]].mean(axis=1) for fit in das.fits["odds"]])
    np.testing.assert_array_equal(das.losses(), own)
    columns = found.columns()
    assert columns["first_loss"][0] == pytest.approx(own[:, :2].mean())
    assert columns["last_loss"][0] == pytest.approx(own[:, -2:].mean())
    assert columns["still_falling"] == [still_falling(own.mean(axis=0), 80 // 4), None]
    assert found["mean"].losses().shape == (1, 0) and math.isnan(columns["last_loss"][1])


def test_the_better_candidate_on_validation_is_taken() -> None:
    model = planted_model()
    assert model.decoder.d_model == 32
    found = run(("probe",))
    assert dict(found["probe"].candidates).keys() == {"l2=10"} and found["probe"].setting == "l2=10"


def test_the_untrained_model(found: TaskOdds) -> None:
    model = planted_model()
    other = run(("mean", "vanilla"), untrained=untrained(model))
    assert other.untrained is not None and other.untrained.model == "untrained:planted"
    np.testing.assert_array_equal(other["mean"].odds("odds"), found["mean"].odds("odds"))
    assert abs(other.untrained.estimate("mean").value) < 0.1 * found.estimate("mean").value
    measure = other.record().measure("odds_mean", "control:untrained model")
    assert measure is not None and measure.value == other.untrained.estimate("mean").value


def test_the_published_indices_change_nothing_where_lengths_are_equal() -> None:
    methods = ("mean", "das:lr=0.1,steps=5", "vanilla")
    found, other = run(methods), run(methods, compat=CAUSALGYM_2024)
    for method in other.methods:
        for of in ("odds", "control"):
            np.testing.assert_allclose(
                other[method].odds(of), found[method].odds(of), atol=1e-9, err_msg=method
            )


def test_where_lengths_differ_the_published_indices_miss_the_noun(found: TaskOdds) -> None:
    task, model = planted_task(unequal=True), planted_model()
    given: Any = {"limits": LIMITS, "progress": SILENT}
    right = evaluate(model, task, ("mean", "vanilla"), **given)
    wrong = evaluate(model, task, ("mean", "vanilla"), compat=CAUSALGYM_2024, **given)
    for method in ("mean", "vanilla"):
        # Regions are found by characters, so a word more changes nothing.
        assert mean(right, method)[0, 0] == pytest.approx(mean(found, method)[0, 0], rel=0.1)
        assert mean(wrong, method)[0, 0] < 0.7 * mean(right, method)[0, 0]


def test_nothing_found_is_no_effect_and_is_said() -> None:
    found = run(("probe-saga:penalty=l1,l2=1e9", "mean"))
    assert len(found["probe-saga:penalty=l1,l2=1e9"].lacking) == 9
    assert found.estimate("probe-saga:penalty=l1,l2=1e9").value == 0
    assert "finds nothing at 9 of 9 sites" in found.warnings()[0]


def test_rules_by_hand() -> None:
    # Two items, two layers, two regions; one seed.
    validation = np.array([[[[1.0, 0], [0, 3]], [[1, 0], [0, 3]]]])
    test = np.array([[[[0.0, 2], [5, 1]], [[2, 4], [7, 3]]]])
    assert chosen_regions(validation, test).tolist() == [[0, 1]]
    assert by_item(test, chosen_regions(validation, test)).tolist() == [[0.5, 2.5]]
    published = chosen_regions(validation, test, CAUSALGYM_2024)
    assert published.tolist() == [[1, 0]]
    assert by_item(test, published).tolist() == [[3.5, 5.5]]
    assert best_mean(test) == 4.5 and best_mean(np.full((1, 3, 2, 4), 7.0)) == 7.0
    with pytest.raises(UnknownName, match="validation"):
        chosen_regions(validation, test, "valid")


def test_what_is_typed_wrong_is_refused() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'probe'"):
        run(("prob",))
    with pytest.raises(BadUsage, match="Name a method"):
        run(())
    with pytest.raises(BadUsage, match="seeds"):
        run(("mean",), seeds=(1, 1))
    with pytest.raises(BadUsage, match="Control labels are a word of its own for each of"):
        run(("mean",), control=(" dog",))
    with pytest.raises(BadPairs, match="not one token each|does not know"):
        run(("mean",), control=(" dog", " give up"))
    with pytest.raises(BadUsage, match="no validation"):
        evaluate(planted_model(), {"train": planted_task().interchanges("train")}, ("mean",))


def test_how_it_shows_itself(found: TaskOdds, tmp_path: Path) -> None:
    columns = found.columns()
    assert columns["method"] == [*METHODS, *CONTROLS] and set(columns["n"]) == {24}
    cells = found.cells()
    assert len(cells["odds"]) == 10 * 9 and sum(cells["chosen"]) == 10 * 3
    assert repr(found).startswith("TaskOdds(model='planted', task='planted', accuracy=1")
    assert "nats of at most" in found._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert found.plot(method="mean") and found.plot_layers()
    record = found.record()
    assert Record.model_validate_json(record.model_dump_json()) == record
    edited = unnoticed(record, tmp_path)
    controls = (*CONTROLS, "random")
    follow = {f"{kind}:{name}" for kind in ("control", "difference") for name in controls}
    assert edited and not any(
        name == "accuracy" or (name.startswith("odds_") and of in {"result", *follow})
        for name, of in edited
    )
    assert record.measure("odds_mean").value == found.estimate("mean").value  # pyright: ignore[reportOptionalMemberAccess]
    with pytest.raises(UnknownName, match="Did you mean 'mean'"):
        found.estimate("meen")


def test_dtypes_agree() -> None:
    wide = run(("mean", "vanilla"))
    given: Any = {"limits": LIMITS, "progress": SILENT}
    narrow = evaluate(planted_model(torch.float32), planted_task(), ("mean", "vanilla"), **given)
    for method in ("mean", "vanilla"):
        np.testing.assert_allclose(mean(narrow, method), mean(wide, method), atol=1e-3)


def test_the_best_candidate_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two penalties the better one on validation items, and what the other one gives."""
    monkeypatch.setattr(methods, "PENALTIES", {32: (1.0, 1e9)})
    found = run(("probe", "probe:l2=1", "probe:l2=1e9", "mean"))
    probe = found["probe"]
    alone = {text: found[f"probe:{text}"] for text in ("l2=1", "l2=1e9")}
    scores = {text: best_mean(each.odds("odds", "validation")) for text, each in alone.items()}
    assert list(probe.candidates.values()) == pytest.approx(list(scores.values()))
    assert list(probe.candidates) == ["l2=1", "l2=1e+09"]
    assert probe.setting == max(probe.candidates, key=lambda text: probe.candidates[text])
    assert set(probe.others) == set(probe.candidates) - {probe.setting}
    columns = found.candidates()
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    two = [row for row in rows if row["method"] == "probe"]
    assert [row["chosen"] for row in two] == [row["setting"] == probe.setting for row in two]
    for row, each in zip(two, alone, strict=True):
        for of in ("odds", "selectivity"):
            assert row[of] == pytest.approx(found.estimate(f"probe:{each}", of).value)
    (mean_row,) = (row for row in rows if row["method"] == "mean")
    assert mean_row["chosen"] and mean_row["validation"] == best_mean(
        found["mean"].odds("odds", "validation")
    )
    table = found.record().table("candidates")
    assert table.columns["setting"] == columns["setting"]


def test_what_chooses_has_an_interval_and_says_its_n(found: TaskOdds) -> None:
    """Of settings and of regions: the same as a bootstrap of the items that were looked at."""
    columns = found.candidates()
    n = len(found.validation_groups)
    assert n and set(columns["n_validation"]) == {n} and set(columns["n"]) == {len(found)}
    for place, method in enumerate(columns["method"]):
        each = found[method]
        items = by_item(each.validation["odds"], each.regions("odds"))
        assert items.mean() == pytest.approx(columns["validation"][place])
        expected = mean_of(items, found.validation_groups, found.seed)
        assert columns["validation_low"][place] == expected.low
        assert columns["validation_high"][place] == expected.high
        assert expected.low <= columns["validation"][place] <= expected.high
    cells = found.cells()
    assert set(cells["n_validation"]) == {n} and set(cells["n"]) == {len(found)}
    for name in ("validation", "control", "selectivity"):
        for value, low, high in zip(
            *(cells[f"{name}{end}"] for end in ("", "_low", "_high")), strict=True
        ):
            # Where nothing flows all items have 0, and these groups are too few for an interval.
            nothing = value == 0 and math.isnan(low) and math.isnan(high)
            assert low <= value <= high or value == pytest.approx(low) or nothing
    first = found[cells["method"][0]].odds("selectivity")[..., 0, 0]
    expected = mean_of(first, found.groups, found.seed)
    assert cells["selectivity_low"][0] == pytest.approx(expected.low)


def test_without_known_groups_what_chooses_has_no_interval(found: TaskOdds) -> None:
    bare = replace(found, validation_groups=())
    columns, cells = bare.candidates(), bare.cells()
    assert columns["validation"] == found.candidates()["validation"]
    assert all(map(math.isnan, columns["validation_low"])) and set(columns["n_validation"]) == {0}
    assert all(map(math.isnan, cells["validation_high"]))
