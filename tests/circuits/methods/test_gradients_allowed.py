"""Methods that need gradients under no-grad, under inference mode,
and on a model that was made there.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mechassay.circuits.methods import METHODS
from mechassay.circuits.optimal_ablation import OptimalAblation
from mechassay.errors import BadUsage
from mechassay.graph import Graph
from mechassay.models.model import make_model
from mechassay.progress import SILENT
from mechassay.testing.tiny import build, subject, token_pairs

NEED = [
    "clean-corrupted",
    "eap",
    "eap-ig-activations:steps=2",
    "eap-ig-inputs:steps=2",
    "nap",
    "nap-ig:steps=2",
] + [f"{name}:steps=3,batch_size=2" for name in ("edge-pruning", "subnetwork-probing", "ugs")]


@pytest.mark.few(2)
@pytest.mark.parametrize("text", NEED)
def test_no_grad_changes_nothing_and_inference_mode_is_refused(text: str) -> None:
    case, method = subject("gpt2"), METHODS.make(text)
    plain = method.score(case.model, case.batch, progress=SILENT).values
    with torch.no_grad():
        torch.testing.assert_close(
            method.score(case.model, case.batch, progress=SILENT).values,
            plain,
            atol=0,
            rtol=0,
            equal_nan=True,
        )
    with (
        torch.inference_mode(),
        pytest.raises(BadUsage, match=r"needs gradients, which torch.inference_mode\(\) forbids"),
    ):
        method.score(case.model, case.batch, progress=SILENT)


def test_optimal_ablation_is_refused_in_inference_mode() -> None:
    case = subject("gpt2")
    with torch.inference_mode(), pytest.raises(BadUsage, match="needs gradients"):
        OptimalAblation(steps=2).learn(case.model, case.batch, progress=SILENT)


def test_a_model_made_in_inference_mode_has_no_gradients() -> None:
    with torch.inference_mode():
        model = make_model(build("gpt2"))
    with pytest.raises(BadUsage, match=r"was loaded under torch.inference_mode\(\)"):
        METHODS.make("eap").score(model, token_pairs(), progress=SILENT)


def test_what_a_graph_keeps_can_be_differentiated_after_inference_mode() -> None:
    graph = Graph(2, 3)
    with torch.inference_mode():
        kept = graph.visible, graph.legal, graph.reader_owner
    assert not any(each.is_inference() for each in kept)


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("ugs", {"lr": float("nan")}, "finite lr"),
        ("ugs", {"sparsity": float("inf")}, "finite lr > 0, sparsity"),
        ("subnetwork-probing", {"sparsity": float("nan")}, "finite lr > 0 and sparsity"),
        ("edge-pruning", {"multiplier_lr": float("nan")}, "finite lr > 0 and multiplier_lr"),
        ("acdc", {"thresholds": ("a",)}, "finite numbers above 0; got 'a'"),
    ],
)
def test_settings_that_are_no_numbers_are_refused(
    text: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadUsage, match=message):
        METHODS.make(text, **settings)
    with pytest.raises(BadUsage, match="finite lr"):
        OptimalAblation(lr=float("nan"))


def test_a_seed_that_is_too_large_is_refused() -> None:
    with pytest.raises(BadUsage, match=r"smaller than 2\^62"):
        METHODS.make(f"random:seed={10**30}").draw(Graph(1, 1))
