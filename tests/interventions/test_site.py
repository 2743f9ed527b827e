"""Sites and how they are spelled.

The shape of a model: its widths are those of its sites.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechassay.errors import BadUsage, UnknownName
from mechassay.interventions.names import PARTS
from mechassay.interventions.site import ModelShape, Site, load_site, sites
from mechassay.models.graph import Graph
from mechassay.testing.tiny import subject

SPELLED = [
    ("resid.12@last", Site(12)),
    ("resid.12", Site(12)),
    ("resid.-1@all", Site(-1, "all")),
    ("heads.7.3,7.9@all", Site(7, "all", "heads", (3, 9))),
    ("heads.7@-2", Site(7, -2, "heads")),
    ("mlp.5@entity.last", Site(5, "entity.last", "mlp")),
    ("mlp.5@4", Site(5, 4, "mlp")),
]
FOREIGN = [
    ("blocks.12.hook_resid_post", Site(12)),
    ("blocks.0.hook_resid_pre@all", Site(-1, "all")),
    ("blocks.3.attn.hook_z@last", Site(3, "last", "heads")),
    ("blocks.3.hook_mlp_out", Site(3, "last", "mlp")),
    ("layers_output[4]@subject", Site(4, "subject")),
    ("mlps_output[4]", Site(4, "last", "mlp")),
    ("ResidualStream(Layer-12,Token-last_token)", Site(12)),
    ("AttentionHead(Layer-7,Head-3,Token-all)", Site(7, "all", "heads", (3,))),
    ("AttentionHead(Layer:7,Head_3,Token_all)", Site(7, "all", "heads", (3,))),
]


@pytest.mark.parametrize(("text", "site"), SPELLED + FOREIGN)
def test_a_spelling_is_read(text: str, site: Site) -> None:
    assert load_site(text) == site
    assert load_site(site) is site


@given(
    st.builds(
        Site,
        st.integers(0, 99),
        st.one_of(st.sampled_from(["last", "all", "subject", "a.first"]), st.integers(-9, 9)),
        st.just("heads"),
        st.lists(st.integers(0, 31), unique=True, max_size=4).map(tuple),
    )
)
def test_what_is_written_is_read_back(site: Site) -> None:
    assert load_site(str(site)) == site


def test_names_of_other_projects_are_written() -> None:
    assert Site(12).mib() == "ResidualStream(Layer-12,Token-last_token)"
    assert Site(7, "all", "heads", (3,)).mib() == "AttentionHead(Layer-7,Head-3,Token-all)"
    assert Site(-1).transformer_lens() == "blocks.0.hook_resid_pre"
    assert Site(3, "last", "mlp").transformer_lens() == "blocks.3.hook_mlp_out"
    assert Site(12).mib("last") == "ResidualStream(Layer-12,Token-last)"
    for site in (Site(12), Site(7, "all", "heads", (3,))):
        assert load_site(site.mib()) == site
    with pytest.raises(BadUsage, match="got heads.7.3,7.4@all"):
        Site(7, "all", "heads", (3, 4)).mib()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("residue.3", "Unknown part of a site 'residue'. Did you mean 'resid'"),
        ("resid", "spelled like resid.12@last"),
        ("resid.a@last", "spelled like"),
        ("heads.7.3,8.9@all", "of one layer"),
        ("resid.7.3@all", "Only sites of part 'heads'"),
        ("heads.7.3,7.3@all", "each head once"),
    ],
)
def test_what_is_no_site_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadUsage, match=said):
        load_site(text)


def test_a_model_s_sites() -> None:
    model = subject("llama").model
    assert [str(s) for s in sites(model, positions=("x", "last"), layers=[0, 2])] == [
        "resid.0@x",
        "resid.0@last",
        "resid.2@x",
        "resid.2@last",
    ]
    heads = sites(model, positions="all", parts="heads")
    assert len(heads) == 12 and str(heads[-1]) == "heads.2.3@all"
    assert len(sites(model, parts=("resid", "mlp"))) == 6
    with pytest.raises(BadUsage, match=r"Site resid.3@last: .* has layers -1 to 2; got 3"):
        sites(model, layers=3)
    with pytest.raises(BadUsage, match="has heads 0 to 3; got 4"):
        Site(0, "last", "heads", (4,)).check(model)
    with pytest.raises(UnknownName):
        sites(model, parts="head")  # pyright: ignore[reportArgumentType]


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
