"""Numbers of an unmodified Hugging Face model, one prompt at a time and without padding.

What is patched is patched by hooks, which are on inside a `with` block alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mechassay.prompts.batch import Batch

Change = Callable[[Tensor], Tensor]


def after(hf: Any, tokens: Sequence[int]) -> Tensor:
    """The logits after a prompt."""
    with torch.no_grad():
        return hf(torch.tensor([list(tokens)]), use_cache=False).logits[0, -1].double()


def greedy(hf: Any, prompt: Sequence[int], n: int) -> tuple[int, ...]:
    """The n likeliest next tokens, one after the other; the whole prompt is read again for each."""
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(int(after(hf, tokens).argmax()))
    return tuple(tokens[len(prompt) :])


def prompts(batch: Batch, *, counterfactual: bool = False) -> list[list[int]]:
    """The token ids of each pair's prompt."""
    tokens = batch.counterfactual if counterfactual else batch.clean
    return [row[real].tolist() for row, real in zip(tokens, batch.mask, strict=True)]


def differences(logits: Sequence[Tensor], batch: Batch) -> Tensor:
    """Of each pair's logits: that of its answer minus that of its foil."""
    pairs = zip(logits, batch.answers[:, 0], batch.foils[:, 0], strict=True)
    return torch.stack([row[answer] - row[foil] for row, answer, foil in pairs])


@contextmanager
def output_of(module: nn.Module, change: Change) -> Iterator[None]:
    """Change what a module gives on."""

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (change(output[0]), *output[1:])
        return change(output)

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def input_of(module: nn.Module, change: Change) -> Iterator[None]:
    """Change what a module reads."""
    handle = module.register_forward_pre_hook(lambda module, args: (change(args[0]), *args[1:]))
    try:
        yield
    finally:
        handle.remove()


def noted(values: list[Tensor]) -> Change:
    """A change that changes nothing and keeps a copy of every value."""

    def change(value: Tensor) -> Tensor:
        values.append(value.clone())
        return value

    return change


def put(new: Tensor, *where: Any) -> Change:
    """A change that puts a new value at some places of the prompt, `value[0, *where]`."""

    def change(value: Tensor) -> Tensor:
        value = value.clone()
        value[(0, *where)] = new
        return value

    return change
