"""Every registered method keeps the contract, on sequential, parallel and post-norm models."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mechassay.circuits import EdgeScores, Random
from mechassay.circuits.methods import METHODS
from mechassay.testing.methods import check_method
from mechassay.testing.tiny import subject

# Methods that train masks take thousands of steps by default, and a search one run an edge that it
# keeps; a few show whether they keep the contract.
SHORT: dict[str, dict[str, Any]] = {
    "acdc": {"threshold": 0.5},
    "edge-pruning": {"steps": 6},
    "subnetwork-probing": {"steps": 6},
    "ugs": {"steps": 6, "batch_size": 2, "samples": 2},
}


@pytest.mark.few(9)
@pytest.mark.parametrize("family", ["gpt2", "neox", "gemma2"])
@pytest.mark.parametrize("name", METHODS.names())
def test_method(name: str, family: str) -> None:
    tiny = subject(family)
    check_method(METHODS.load(name)(**SHORT.get(name, {})), tiny.model, tiny.batch)


class Careless(Random):
    """Draws from the global generator."""

    def score(self, *args: Any, **kwargs: Any) -> EdgeScores:
        torch.rand(1)
        return super().score(*args, **kwargs)


def test_the_contract_can_fail() -> None:
    tiny = subject("gpt2")
    with pytest.raises(AssertionError, match="global generator"):
        check_method(Careless(), tiny.model, tiny.batch)
