"""Ensembles of methods: by hand, and what does not change them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mechassay.circuits import EAP, EAPIGInputs, Ensemble
from mechassay.circuits.methods.ensemble import combined
from mechassay.errors import BadUsage, UnknownName
from mechassay.testing.checks import check_method
from mechassay.testing.tiny import subject
from mechassay.utils.display import SILENT

SCORES = torch.tensor([[4.0, -2.0, 0.0, 2.0], [1.0, 0.5, -0.25, 0.5]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("how", "by_hand"),
    [
        ("mean", [1.0, 0.0, -0.125, 0.5]),
        ("rank", [1.0, 0.0, -0.125, 0.625]),
        ("least", [1.0, 0.0, 0.0, 0.5]),
    ],
)
def test_by_hand(how: str, by_hand: list[float]) -> None:
    expected = torch.tensor(by_hand, dtype=torch.float64)
    torch.testing.assert_close(combined(SCORES, how), expected)
    # A method in other units is the same method, and one that says nothing has no say in a mean.
    torch.testing.assert_close(combined(SCORES * torch.tensor([[7.0], [0.1]]), how), expected)
    silent = torch.cat((SCORES, torch.zeros(1, 4, dtype=torch.float64)))
    scale = 0.0 if how == "least" else 2 / 3
    torch.testing.assert_close(combined(silent, how), scale * expected)


@pytest.mark.parametrize("how", ["mean", "rank", "least"])
def test_an_ensemble_is_a_method_near_its_members(how: Any) -> None:
    tiny = subject("qwen2")
    both = Ensemble("eap+clean-corrupted", how)
    check_method(both, tiny.model, tiny.batch)
    scores = both.score(tiny.model, tiny.batch, progress=SILENT)
    eap = EAP().score(tiny.model, tiny.batch, progress=SILENT)
    assert len(set(scores.ranking("magnitude")[:20]) & set(eap.ranking("magnitude")[:20])) > 5
    assert both.forwards(tiny.model.graph, 3) == 9 + 18


def test_members_are_two_methods_that_score_edges() -> None:
    tiny = subject("gpt2")
    with pytest.raises(BadUsage, match="two or more methods"):
        Ensemble("eap+eap")
    with pytest.raises(BadUsage, match="nap scores neurons"):
        Ensemble("eap+nap").score(tiny.model, tiny.batch, progress=SILENT)
    with pytest.raises(UnknownName, match="eap-ig-inputs"):
        Ensemble("eap+eap-ig-input")
    with pytest.raises(BadUsage, match="auto is chosen on validation pairs"):
        Ensemble("eap+eap:backward=auto")
    with pytest.raises(UnknownName, match="least"):
        Ensemble(how="last")  # pyright: ignore[reportArgumentType]
    assert EAPIGInputs().name in Ensemble().members
