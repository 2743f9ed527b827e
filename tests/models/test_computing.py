"""How numbers are computed: TF32, with PyTorch's flag of the user put back, and compiled code."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import mechassay as ma
from mechassay.circuits.methods import attribution
from mechassay.errors import UnknownName
from mechassay.models.computing import chosen, computing, products_of_changes

FLAGS = {"auto": "medium", "on": "high", "off": "highest"}
"""PyTorch's flag inside, of a user whose own is `medium`."""


@pytest.fixture(autouse=True)
def own_flag() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("choice", FLAGS)
def test_the_flag_is_set_and_put_back(choice: str) -> None:
    with computing(choice):
        assert torch.get_float32_matmul_precision() == FLAGS[choice]
        assert chosen().tf32 == choice
    assert torch.get_float32_matmul_precision() == "medium"
    assert chosen().tf32 == "auto"


def test_an_error_inside_puts_it_back() -> None:
    with pytest.raises(ZeroDivisionError), computing("on"):
        _ = 1 / 0
    assert (torch.get_float32_matmul_precision(), chosen().tf32) == ("medium", "auto")


def test_another_word_is_refused() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'on'"), ma.computing("onn"):
        pass


@pytest.mark.parametrize(
    ("choice", "device", "dtype", "flag"),
    [
        ("auto", "cuda", torch.bfloat16, "high"),
        ("auto", "cuda", torch.float16, "high"),
        ("auto", "cuda", torch.float32, "medium"),
        ("auto", "cpu", torch.bfloat16, "medium"),
        ("off", "cuda", torch.bfloat16, "highest"),
        ("off", "cuda", torch.float32, "highest"),
        ("on", "cuda", torch.float32, "high"),
    ],
)
def test_products_of_changes(choice: str, device: str, dtype: torch.dtype, flag: str) -> None:
    with computing(choice):
        outside = torch.get_float32_matmul_precision()
        with products_of_changes(torch.device(device), dtype):
            assert torch.get_float32_matmul_precision() == flag
        assert torch.get_float32_matmul_precision() == outside


@pytest.mark.parametrize("choice", FLAGS)
def test_a_method_multiplies_under_it(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag where EAP multiplies changes with gradients, and where its runs are made."""
    flags: dict[str, str] = {}
    for name in ("_contract_block", "tapped_forward"):
        own = getattr(attribution, name)

        def seen(*given, name=name, own=own, **more):
            flags[name] = torch.get_float32_matmul_precision()
            return own(*given, **more)

        monkeypatch.setattr(attribution, name, seen)
    model = ma.load_model("truth-ioi")
    pairs = ma.load_task("truth-ioi").pairs("train", model, limit=4)
    with computing(choice):
        ma.circuits.EAP().score(model, pairs)
    assert flags == dict.fromkeys(("_contract_block", "tapped_forward"), FLAGS[choice])
    assert torch.get_float32_matmul_precision() == "medium"
