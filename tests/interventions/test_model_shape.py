"""The shape of a model: its widths are those of its sites."""

from __future__ import annotations

import pytest

from mechassay.errors import BadUsage
from mechassay.graph import Graph
from mechassay.interventions.model_shape import ModelShape
from mechassay.interventions.site import PARTS, Site, load_site, sites
from mechassay.testing.tiny import subject


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
def test_widths_are_those_of_the_models_sites(name: str) -> None:
    model = subject(name).model
    shape = ModelShape.of(model)
    for site in (*sites(model, parts=PARTS), load_site("heads.0.0,0.1@all"), Site(0, part="heads")):
        assert shape.width(site) == site.width(model.decoder)
        assert site.check_graph(shape.graph, name) is site
    assert ModelShape.from_dict(shape.as_dict()) == shape


def test_numbers_that_are_no_shape_are_refused() -> None:
    told = ModelShape(Graph(2, 2), 8, 4).as_dict()
    for wrong in ({}, {**told, "more": 1}, {**told, "d_model": 0}, {**told, "mlp": 1}):
        with pytest.raises(BadUsage, match="shape"):
            ModelShape.from_dict(wrong)
    with pytest.raises(BadUsage, match="fingerprint"):
        ModelShape.from_dict({**told, "n_heads": 3})
