"""How many tokens to work on at once: a byte budget divided by what one token needs.

On a CPU the budget is small, so that a working set stays near the caches; on a GPU it is a share of
what is free. One example that needs more than the machine has is refused beforehand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mechassay.errors import OutOfMemory, first_line
from mechassay.models.decoder import Decoder

CPU_BUDGET = 384 * 2**20
GPU_SHARE = 0.25
KEPT_SHARE = 0.25


# Bytes that one token needs, about, by kind of run.


def trace_bytes(decoder: Decoder) -> int:
    """Of a run taken apart: what every writer wrote and every reader saw."""
    graph, width = decoder.graph, 8 if decoder.embedding.dtype == torch.float64 else 4
    vectors = graph.n_writers + 2 * graph.readers_per_layer + 16 * graph.n_layers
    return vectors * decoder.d_model * width


def stream_bytes(decoder: Decoder, width: int) -> int:
    """Of a run of rows of `width` tokens of which the last stream alone is kept; with its mask."""
    mlp = decoder.layers[0].mlp
    hidden = 0 if mlp is None else mlp.width * 4
    numbers = 14 * decoder.d_model + hidden + 3 * decoder.n_heads * width
    return numbers * max(decoder.embedding.element_size(), 4) + 16 * width


def gradient_bytes(decoder: Decoder, copies: int) -> int:
    """Of `copies` differentiated runs that autograd keeps, and the two runs of the contrast."""
    mlp, n_layers, d_model = decoder.layers[0].mlp, len(decoder.layers), decoder.d_model
    hidden = 0 if mlp is None else mlp.width * (2 if mlp.gate is None else 4)
    kept = n_layers * (14 * d_model + hidden)
    return (copies * kept + 2 * 9 * n_layers * d_model) * decoder.embedding.element_size()


def patching_bytes(decoder: Decoder) -> int:
    """Of a change patched into one layer's readers, and of the runs resumed after it."""
    vectors = 12 * (3 * decoder.n_heads + 8)
    return vectors * decoder.d_model * decoder.embedding.element_size()


def suffix_bytes(decoder: Decoder, n_columns: int, *, gradients: bool) -> tuple[int, int]:
    """Of a stack of interventions (`models.patched_forward`): of a token, and of a row besides,
    whose keys and values are those of all columns.
    """
    attention, mlp = decoder.layers[0].attention, decoder.layers[0].mlp
    hidden = 0 if mlp is None else mlp.width * (2 if mlp.gate is None else 3)
    keys = 4 * n_columns * attention.n_heads * attention.q.weight.shape[1]
    layers = (len(decoder.layers) if gradients else 1) * decoder.embedding.element_size()
    return layers * (14 * decoder.d_model + hidden), layers * keys


def kept_run_bytes(decoder: Decoder) -> int:
    """Of a run that is kept whole (`models.forward.Trace`): what a token has in it."""
    attention = decoder.layers[0].attention
    mixes = 2 * (attention.n_heads + attention.k.weight.shape[0]) * attention.q.weight.shape[1]
    numbers = len(decoder.layers) * (4 * decoder.d_model + mixes) + 2 * decoder.d_model
    return numbers * decoder.embedding.element_size()


def may_be_kept(n_bytes: int, device: torch.device) -> bool:
    """Whether something of this size may stay on the device while other things are worked on."""
    free = available_bytes(device)
    return free is None or n_bytes <= free * KEPT_SHARE


def masked_bytes(decoder: Decoder) -> int:
    """Of a differentiated run with a mask on every edge (`models.gradients`)."""
    graph = decoder.graph
    vectors = 2 * graph.readers_per_layer + 2 * graph.writers_per_layer + 14
    if decoder.has_post_norm:
        vectors += 4 * graph.readers_per_layer
    return _kept_bytes(decoder, vectors)


def constants_bytes(decoder: Decoder) -> int:
    """Of a differentiated run in which writers carry constants."""
    return _kept_bytes(decoder, 16)


def _kept_bytes(decoder: Decoder, vectors: int) -> int:
    """Of what autograd keeps: so many vectors a layer, and an MLP's hidden ones."""
    mlp, width = decoder.layers[0].mlp, max(decoder.embedding.element_size(), 4)
    hidden = 0 if mlp is None else mlp.width * 4
    return len(decoder.layers) * (vectors * decoder.d_model + hidden) * width


def available_bytes(device: torch.device) -> int | None:
    """Memory that a run on `device` may still take; None where the platform does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = [line for line in file if line.startswith("MemAvailable")]
        return int(lines[0].split()[1]) * 1024
    except (OSError, IndexError):
        pass
    names = os.sysconf_names if hasattr(os, "sysconf_names") else {}
    if "SC_AVPHYS_PAGES" in names:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def token_budget(per_token: int, longest: int, device: torch.device) -> int:
    """Tokens to hold at once, at least one example of `longest` tokens.

    Args:
        per_token: bytes that one token needs.
        longest: tokens of the longest example.

    Raises:
        OutOfMemory: one example of `longest` tokens does not fit.
    """
    free = check_fits(per_token, longest, device)
    return max(longest, budget_of(free, device) // max(per_token, 1))


def byte_budget(per_token: int, longest: int, device: torch.device) -> int:
    """Bytes to work on at once; see `token_budget`, whose errors it raises."""
    return budget_of(check_fits(per_token, longest, device), device)


def budget_of(free: int | None, device: torch.device) -> int:
    """Bytes to work on at once where so many are free."""
    return CPU_BUDGET if device.type == "cpu" else int((free or 0) * GPU_SHARE)


def check_fits(per_token: int, longest: int, device: torch.device) -> int | None:
    """The free bytes of a device, if one example fits; see `token_budget`."""
    free, need = available_bytes(device), per_token * longest
    if free is not None and need > free:
        raise OutOfMemory(
            f"One example of {longest} tokens needs about {need / 2**30:.1f} GB; {free / 2**30:.1f}"
            f" GB are free on {device}."
        )
    return free


@contextmanager
def out_of_memory_is_an_error(what: str) -> Iterator[None]:
    """Turn the allocator's failure into one line that says what was being done."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(f"{what}: the device ran out of memory ({first_line(error)}).") from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error) and "not enough memory" not in str(error):
            raise
        raise OutOfMemory(f"{what}: the machine ran out of memory.") from error
