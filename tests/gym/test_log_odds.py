"""Log odds-ratios: what follows from their definition, for any weights."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechassay as ma
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.features import DiffInMeans, Directions, Fit, FullVector, RandomDirections
from mechassay.features.finder import values_at
from mechassay.features.training import SiteTokens
from mechassay.gym import LogOddsRatios, odds
from mechassay.interventions.site import load_site
from mechassay.models.model import Model, make_model
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.testing import tiny
from mechassay.utils.display import SILENT

SITES = ("resid.0@word", "resid.1@word", "resid.2@word", "resid.1@last", "resid.2@last")


def swapped_pairs(n: int = 6, seed: int = 0) -> InterchangeBatch:
    """Pairs, each followed by its swap; both sentences begin alike."""
    generator = torch.Generator().manual_seed(seed)
    base, source = list[list[int]](), list[list[int]]()
    for _ in range(n):
        head, ours, theirs, tail = torch.randint(1, 97, (4, 2), generator=generator).tolist()
        pair = [*head, *ours, *tail], [*head, *theirs, *tail]
        base += pair
        source += pair[::-1]
    return InterchangeBatch.from_tokens(
        base,
        source,
        labels=[3, 4] * n,
        base_labels=[4, 3] * n,
        columns={"head": [1] * 2 * n, "word": [3] * 2 * n},
        groups=[str(row // 2) for row in range(2 * n)],
    )


@pytest.fixture(scope="module", name="model")
def the_model() -> Model:
    return make_model(tiny.build("llama", torch.float64), name="tiny")


def measured(model: Model, finder: Any, batch: InterchangeBatch | None = None) -> LogOddsRatios:
    given = swapped_pairs() if batch is None else batch
    fit = finder.fit(model, swapped_pairs(seed=3), SITES, progress=SILENT)
    return odds(fit, given, progress=SILENT)


def with_directions(model: Model, vectors: torch.Tensor) -> LogOddsRatios:
    featurizer = Directions.of(vectors)
    fit = Fit(dict.fromkeys(map(load_site, SITES), featurizer), model=model)
    return odds(fit, swapped_pairs(), progress=SILENT)


def test_they_are_those_of_a_sweep(model: Model) -> None:
    """Of logits alone they are what they are of log-probabilities."""
    batch = swapped_pairs()
    fit = DiffInMeans().fit(model, batch, SITES, progress=SILENT)
    found = odds(fit, batch, progress=SILENT)
    swept = ma.sweep(model, batch, SITES, fit.interchanges(), progress=SILENT)
    np.testing.assert_allclose(found.values, swept.log_odds, atol=1e-12)
    np.testing.assert_allclose(
        list(vars(found.estimate(SITES[1])).values()),
        list(vars(swept.estimate(SITES[1], "log_odds")).values()),
        atol=1e-12,
    )
    np.testing.assert_array_equal(found[SITES[1]], found.values[:, 1])


def test_the_last_layer_gives_what_both_sentences_say(model: Model) -> None:
    """At the last token of the last layer the source's own logits come out: each item's odds are
    the log odds of its base plus those of its source, and a swap changes nothing.
    """
    found = measured(model, FullVector())
    own = found.base
    both = own + own.reshape(-1, 2)[:, ::-1].ravel()
    np.testing.assert_allclose(found["resid.2@last"], both, atol=1e-12)
    pairs = found["resid.2@last"].reshape(-1, 2)
    np.testing.assert_allclose(pairs[:, 0], pairs[:, 1], atol=1e-12)
    assert (found["resid.2@word"] == 0).all()


def test_no_difference_gives_exactly_nothing(model: Model) -> None:
    batch = swapped_pairs()
    fit = FullVector().fit(model, batch, ["resid.0@head", "resid.2@head"], progress=SILENT)
    assert (odds(fit, batch, progress=SILENT).values == 0).all()
    same = replace(batch, source=batch.base, source_mask=batch.base_mask)
    assert (measured(model, FullVector(), same).values == 0).all()


def test_a_direction_along_which_nothing_differs_does_nothing(model: Model) -> None:
    batch, at = swapped_pairs(1), load_site("resid.1@word")
    (values,) = values_at(model, batch, [at], [SiteTokens.of(batch, at)])
    difference = values[1] - values[0]
    random = torch.randn(32, generator=torch.Generator().manual_seed(0)).double()
    across = random - difference * (random @ difference) / (difference @ difference)
    for vector, nothing in ((across, True), (random, False)):
        fit = Fit({at: Directions.of(vector)}, model=model)
        values_of = odds(fit, batch, progress=SILENT).values
        assert (np.abs(values_of).max() < 1e-9) == nothing


def test_all_tokens_of_a_layer_are_the_source(model: Model) -> None:
    """Prompts of equal length, every token exchanged after any layer: the source's own logits."""
    batch = swapped_pairs()
    sites = [f"resid.{layer}@all" for layer in range(3)]
    fit = FullVector().fit(model, batch, sites, progress=SILENT)
    found = odds(fit, batch, progress=SILENT)
    both = found.base + found.base.reshape(-1, 2)[:, ::-1].ravel()
    for site in sites:
        np.testing.assert_allclose(found[site], both, atol=1e-9)


def test_a_direction_has_no_sign_and_no_length(model: Model) -> None:
    vector = torch.randn(32, generator=torch.Generator().manual_seed(0)).double()
    first, other = with_directions(model, vector), with_directions(model, -7.5 * vector)
    np.testing.assert_allclose(first.values, other.values, atol=1e-12)
    assert np.abs(first["resid.0@word"]).min() > 1e-6


def test_a_space_has_no_basis_and_all_of_it_is_the_vector(model: Model) -> None:
    generator = torch.Generator().manual_seed(0)
    space, turn = (torch.randn(*shape, generator=generator).double() for shape in ((32, 4), (4, 4)))
    first, other = with_directions(model, space), with_directions(model, space @ turn)
    np.testing.assert_allclose(first.values, other.values, atol=1e-9)
    whole, vanilla = measured(model, RandomDirections(k=32)), measured(model, FullVector())
    np.testing.assert_allclose(whole.values, vanilla.values, atol=1e-9)


def test_exchanged_labels_are_the_negative(model: Model) -> None:
    batch = swapped_pairs()
    assert batch.base_labels is not None
    turned = replace(batch, labels=batch.base_labels, base_labels=batch.labels)
    fit = FullVector().fit(model, batch, SITES, progress=SILENT)
    first, other = (odds(fit, each, progress=SILENT) for each in (batch, turned))
    np.testing.assert_array_equal(first.values, -other.values)


def test_items_do_not_know_of_each_other(model: Model) -> None:
    batch = swapped_pairs()
    fit = FullVector().fit(model, batch, SITES, progress=SILENT)
    found = odds(fit, batch, progress=SILENT)
    some = [7, 2, 9]
    other = odds(fit, batch.select(some), progress=SILENT)
    np.testing.assert_allclose(found.values[some], other.values, atol=1e-12)
    wider = InterchangeBatch.from_tokens(
        [*[row.tolist() for row in batch.base], [5] * 20],
        [*[row.tolist() for row in batch.source], [6] * 20],
        labels=[*batch.labels[:, 0].tolist(), 3],
        base_labels=[*([4, 3] * 6), 4],
        columns={"word": [3] * 13},
    )
    again = odds(fit, wider, progress=SILENT)
    np.testing.assert_allclose(found.values, again.values[:12], atol=1e-12)


@pytest.mark.slow
def test_a_random_direction_carries_its_share() -> None:
    """In a model whose blocks write nothing, before a norm that is linear, odds are linear in what
    is exchanged: a random direction of d carries 1/d of the whole vector on average.
    """
    hf: Any = tiny.build("mistral", torch.float64)
    for layer in hf.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    hf.model.embed_tokens.weight.mul_(0.01)
    hf.model.embed_tokens.weight[:, 0] = 50.0
    model, batch = make_model(hf), swapped_pairs(2)
    at = ["resid.1@last"]
    last = {"base": batch.base.clone(), "source": batch.source.clone()}
    for row in range(4):
        last["base"][row, -1], last["source"][row, -1] = 10 + row, 20 + row
    batch = replace(batch, **last)
    vanilla = odds(FullVector().fit(model, batch, at, progress=SILENT), batch, progress=SILENT)
    draws = np.stack(
        [
            odds(
                RandomDirections(seed=seed).fit(model, batch, at, progress=SILENT),
                batch,
                progress=SILENT,
            ).values[:, 0]
            for seed in range(300)
        ]
    )
    error = draws.std(axis=0) / np.sqrt(300)
    assert (np.abs(draws.mean(axis=0) - vanilla.values[:, 0] / 32) < 4 * error).all()
    assert (np.abs(vanilla.values[:, 0]) > 0).all() and (error < 0.02).all()


def test_labels_of_several_tokens_are_scored_whole(model: Model) -> None:
    batch = swapped_pairs()
    rows = [[3, 8], [4, 9]] * 6
    longer = InterchangeBatch.from_tokens(
        batch.base, batch.source, rows, base_labels=[4, 3] * 6, columns={"word": [3] * 12}
    )
    fit = FullVector().fit(model, longer, SITES, progress=SILENT)
    swept = ma.sweep(model, longer, SITES, progress=SILENT)
    np.testing.assert_array_equal(odds(fit, longer, progress=SILENT).values, swept.log_odds)


def test_what_cannot_be_measured_is_refused(model: Model, tmp_path: Path) -> None:
    batch = swapped_pairs()
    fit = FullVector().fit(model, batch, SITES, progress=SILENT)
    with pytest.raises(BadPairs, match="odds needs the label of every base"):
        odds(fit, replace(batch, base_labels=None), progress=SILENT)
    read = Fit.load(fit.save(tmp_path))
    with pytest.raises(BadUsage, match="odds needs model="):
        odds(read, batch)
    again = odds(read, batch, model=model, progress=SILENT)
    assert again.estimate(SITES[0]).value == again[SITES[0]].mean()
    with pytest.raises(BadUsage, match="each site alone"):
        odds(replace(fit, together=True), batch)
    with pytest.raises(UnknownName, match=r"resid\.0@word"):
        again["resid.0@world"]


def test_how_they_show_themselves(model: Model) -> None:
    found = measured(model, DiffInMeans())
    columns = found.columns()
    assert columns["site"] == list(SITES) and set(columns["n"]) == {12}
    assert repr(found).startswith("LogOddsRatios(n=12, sites=5, best='resid.")
    assert found.plot() is not None and "resid.1@word" in found._repr_html_()  # pyright: ignore[reportPrivateUsage]
    # Where nothing flows these few items agree, and have no interval.
    assert any(map(math.isnan, columns["low"])) and "nan" not in found._repr_html_()  # pyright: ignore[reportPrivateUsage]
    record = found.record()
    assert record.kind == "odds" and len(record.measures) == 5 and record.model.name == "tiny"
    assert record.measure("odds_resid.1@word").n == 12  # pyright: ignore[reportOptionalMemberAccess]
    assert record.values is not None and record.values.groups[:3] == ["0", "0", "1"]
