"""Logit differences after many interventions, against those of one run each."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from families import families
from interchanges_made import token_interchanges
from mechassay.errors import BadPairs
from mechassay.interventions.intervene import intervene
from mechassay.interventions.intervention import Add, Interchange, Intervention
from mechassay.interventions.logit_differences import logit_differences
from mechassay.interventions.site import Site, load_site
from mechassay.models.model import Model
from mechassay.progress import SILENT
from mechassay.testing.tiny import subject


def plans(model: Model) -> list[dict[Site, Intervention]]:
    v = torch.linspace(-1, 1, model.decoder.d_model, dtype=torch.float64)
    given: list[dict[str, Intervention]] = [
        {"heads.0.1@all": Interchange(), "heads.1.3@all": Interchange(), "resid.1@x": Add(v)},
        {"resid.2@x": Interchange()},  # changes nothing that is read
        {"mlp.1@last": Interchange(alpha=0.5)},
        {"resid.0@last": Interchange(alpha=0.0)},
        {"resid.-1@all": Interchange()},
    ]
    return [{load_site(site): each for site, each in plan.items()} for plan in given]


@pytest.mark.parametrize("family", families())
def test_each_is_that_of_a_run_of_its_own(family: str) -> None:
    model = subject(family, torch.float64).model
    batch = token_interchanges(7, equal=True)
    found = logit_differences(model, batch, plans(model), progress=SILENT)
    assert found.after.shape == (7, 5)
    for number, plan in enumerate(plans(model)):
        out = intervene(model, batch, plan)
        np.testing.assert_allclose(
            found.after[:, number], (out.other_log_probs - out.log_probs).numpy(), atol=1e-12
        )
        np.testing.assert_allclose(
            found.base, (out.other_base_log_probs - out.base_log_probs).numpy(), atol=1e-12
        )
    # What changes nothing is the base run's own, to the last bit.
    np.testing.assert_array_equal(found.after[:, 3], found.base)
    assert (found.after[:, [0, 2, 4]] != found.base[:, None]).all()


def test_first_tokens_count_and_chunks_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model = subject("llama", torch.float64).model
    long = token_interchanges(6, equal=True, label_tokens=3)
    short = replace(long, labels=long.labels[:, :1])
    whole = logit_differences(model, short, plans(model), progress=SILENT)
    path = "mechassay.interventions.logit_differences.token_budget"
    monkeypatch.setattr(path, lambda *given: 12)
    for batch in (long, long.teacher_forced(), short):
        found = logit_differences(model, batch, plans(model)[1:4], progress=SILENT)
        np.testing.assert_allclose(found.after, whole.after[:, 1:4], atol=1e-12)
        np.testing.assert_allclose(found.base, whole.base, atol=1e-12)


def test_both_labels_are_needed() -> None:
    model = subject("gpt2").model
    batch = replace(token_interchanges(3), base_labels=None)
    with pytest.raises(BadPairs, match="needs the label of every base .base_labels.; pair 0 has"):
        logit_differences(model, batch, [{"resid.1@last": Interchange()}])
