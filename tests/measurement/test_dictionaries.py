"""Held-out values: of all test documents, of the given site, and read by what is compared."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mechassay.errors import BadUsage
from mechassay.interventions.site import Site
from mechassay.measurement import measure
from mechassay.measurement.gauges.dictionaries import held_out
from mechassay.measurement.inputs import Inputs
from mechassay.saes.planted import SITE, PlantedTrainer, plant
from mechassay.truth.models import load_truth

SOME = plant(documents=320, window=4)


def given(**more: Any) -> dict[str, Any]:
    sae = SOME.sae()
    about = {"sae": sae, "other sae": (sae, SOME.sae(wide=True)), "texts": SOME.store()}
    return {**about, "trainer": PlantedTrainer(SOME), **more}


def test_held_out_values_are_of_all_test_documents() -> None:
    store = SOME.store()
    assert len(store.shards("test")) == 2
    # The defect: about so many values are one shard, the first.
    assert store.shards("test", 100) == [0]
    found, values = held_out(Inputs(more={"texts": store}), rows=100), store.values("test")
    assert len(found) == 100 and torch.equal(found[0], values[0])
    assert torch.equal(found[-1], values[-1])
    places = (found[:, None] == values[None]).all(2).float().argmax(1)
    assert int(places.diff().min()) >= 3 and int(places.diff().max()) <= 4
    assert torch.equal(held_out(Inputs(more={"texts": store})), values)


@pytest.mark.parametrize("metric", ["M07", "M09", "M11"])
def test_activations_of_another_site_are_refused(metric: str) -> None:
    bare = replace(SOME.sae(), hook="")
    with pytest.raises(BadUsage, match=r"activations are of resid\.0.*got the site resid\.1"):
        # Dictionaries that do not say where they were trained.
        measure(metric, site=Site(1, "all"), more=given(**{"sae": bare, "other sae": (bare,)}))
    with pytest.raises(BadUsage, match="needs stored activations of texts"):
        measure(metric, site=SITE, more=given(texts=SOME.values))


@pytest.mark.parametrize("metric", ["M07", "M11"])
def test_activations_of_another_model_are_refused(metric: str) -> None:
    model = load_truth("truth-ioi").model
    sae = plant(d=model.decoder.d_model).sae()
    about = given(**{"sae": sae, "other sae": (sae,)})
    with pytest.raises(BadUsage, match="not of this model"):
        measure(metric, model, site=SITE, more=about)


def test_a_trainer_on_other_values_is_refused() -> None:
    trainer = PlantedTrainer(SOME)
    other = SimpleNamespace(train=trainer.train, store=plant(seed=5).store())
    with pytest.raises(BadUsage, match="trainer's dictionaries are of resid.0"):
        measure("M09", site=SITE, more=given(trainer=other))
    same = SimpleNamespace(train=trainer.train, store=SOME.store())
    assert measure("M09", site=SITE, more=given(trainer=same)).id == "M09"
