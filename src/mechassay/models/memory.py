"""How many tokens to work on at once: a byte budget divided by what one token needs.

On a CPU the budget is small, so that a working set stays near the caches; on a GPU it is a share of
what is free. A longer example is worked on whole as far as a larger budget reaches, and beyond it
some columns at a time where a computation can do that (`models.spans`). An example that needs more
than the machine has is refused beforehand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from mechassay.errors import OutOfMemory, first_line
from mechassay.models.decoder import Decoder
from mechassay.prompts.batch import Batch

CPU_BUDGET = 384 * 2**20
GPU_SHARE = 0.25
KEPT_SHARE = 0.25
EXAMPLE_BUDGET = 6 * 2**30
"""Of one whole example on a CPU: the same on all machines with twice as much free, so that a
resumed run divides examples as before.
"""
EXAMPLE_SHARE = 0.5
SPAN_SHARE = 0.25
"""Of that; what is kept of all columns comes on top."""
LEAST_COLUMNS = 16


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


def gradient_bytes(decoder: Decoder, copies: int, width: int) -> int:
    """Of `copies` differentiated runs of `width` tokens, which autograd keeps, and the two runs of
    the contrast.
    """
    mlp, n_layers, d_model = decoder.layers[0].mlp, len(decoder.layers), decoder.d_model
    hidden = 0 if mlp is None else mlp.width * (2 if mlp.gate is None else 4)
    # Patterns of attention stay only where they are computed one by one.
    attention = decoder.layers[0].attention
    fused = attention.softcap is None and attention.softmax is None
    patterns = 0 if fused else 4 * attention.n_heads * width
    kept = n_layers * (14 * d_model + hidden + patterns)
    return (copies * kept + 2 * 9 * n_layers * d_model) * decoder.embedding.element_size()


def changed_share(decoder: Decoder, copies: int, width: int) -> float:
    """The part of `gradient_bytes` that a token takes only from the first column on in which its
    pair differs: all but the clean run, and the keys and values that every copy reads.
    """
    attention, clean = decoder.layers[0].attention, 9 * decoder.d_model
    read = 2 * copies * attention.n_heads * attention.k.weight.shape[1]
    whole = len(decoder.layers) * (clean + read) * decoder.embedding.element_size()
    return max(0.0, 1 - whole / gradient_bytes(decoder, copies, width))


def past_bytes(decoder: Decoder, copies: int = 0) -> int:
    """Of a clean and a reference run of which keys and values alone are kept, and of `copies` more,
    whose gradients by each query head's keys and values are added up.
    """
    width, attention = decoder.embedding.element_size(), decoder.layers[0].attention
    n_shared, d_head, _ = attention.k.weight.shape
    shared, own = n_shared * width, attention.n_heads * (width + max(width, 4))
    return 2 * len(decoder.layers) * d_head * ((2 + copies) * shared + copies * own)


def prefix_bytes(decoder: Decoder) -> int:
    """Of a circuit's keys and values (`models.circuit_forward.Prefix`)."""
    attention = decoder.layers[0].attention
    numbers = 2 * len(decoder.layers) * attention.n_heads * attention.k.weight.shape[1]
    return numbers * decoder.embedding.element_size()


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


def token_budget(
    per_token: int, longest: int, device: torch.device, *, kept: int | None = None
) -> int:
    """Tokens to hold at once, at least one example of `longest` tokens if it has to be whole.

    Args:
        per_token: bytes that one token needs.
        longest: tokens of the longest example.
        kept: bytes that a token needs besides where an example is run some columns at a time; then
            an example of more tokens than the budget is. None: examples are run whole.

    Raises:
        OutOfMemory: one example of `longest` tokens does not fit.
    """
    if kept is None:
        free, columns = check_fits(per_token, longest, device), longest
    else:
        free = available_bytes(device)
        columns = _columns(per_token, longest, kept, free, device)
    return max(columns, budget_of(free, device) // max(per_token, 1))


class GradientShare(NamedTuple):
    """How much is differentiated at once.

    Attributes:
        tokens: of a chunk of examples; a longer example is run that many columns at a time.
        copies: runs of an example.
        changed: see `changed_share`; 0 where all columns are differentiated.
    """

    tokens: int
    copies: int
    changed: float = 0.0

    def chunks(self, batch: Batch) -> Iterator[tuple[list[int], Batch]]:
        """The rows of each chunk of examples, and the chunk."""
        return batch.chunks(self.tokens, changed=self.changed)

    def holds(self, batch: Batch) -> bool:
        """Whether a batch is differentiated whole, not some columns at a time."""
        columns = batch.n_tokens
        if self.changed:
            differ = int(batch.changed_columns().max())
            columns = (1 - self.changed) * columns + self.changed * differ
        return len(batch) * columns <= self.tokens


def gradient_share(
    decoder: Decoder, copies: int, longest: int, device: torch.device
) -> GradientShare:
    """Tokens and copies to differentiate at once, where examples need not be whole.

    All copies, unless what is kept of them for one example leaves no room.

    Raises:
        OutOfMemory: one example of `longest` tokens does not fit.
    """
    room = example_budget(available_bytes(device), device)
    copies = copies_within(decoder, copies, longest, room)
    per_token = gradient_bytes(decoder, copies, longest)
    kept = past_bytes(decoder, copies)
    return GradientShare(token_budget(per_token, longest, device, kept=kept), copies)


def copies_within(decoder: Decoder, copies: int, longest: int, room: int) -> int:
    """Copies of an example of `longest` tokens that are differentiated together in so many bytes:
    all if they fit whole, else as many as what is kept of them leaves room for.
    """
    if gradient_bytes(decoder, copies, longest) * longest <= room:
        return copies
    fitting = (n for n in range(copies, 1, -1) if past_bytes(decoder, n) * longest <= room)
    return next(fitting, 1)


def circuits_at_once(decoder: Decoder, longest: int, device: torch.device) -> int:
    """Circuits whose keys and values may be kept for one example, beside what spans take."""
    room = int(example_budget(available_bytes(device), device) * SPAN_SHARE)
    return max(1, room // (prefix_bytes(decoder) * longest))


def byte_budget(per_token: int, longest: int, device: torch.device) -> int:
    """Bytes to work on at once; see `token_budget`, whose errors it raises."""
    return budget_of(check_fits(per_token, longest, device), device)


def budget_of(free: int | None, device: torch.device) -> int:
    """Bytes to work on at once where so many are free."""
    return CPU_BUDGET if device.type == "cpu" else int((free or 0) * GPU_SHARE)


def example_budget(free: int | None, device: torch.device) -> int:
    """Bytes of one example, or of some of its columns."""
    if free is None:
        return EXAMPLE_BUDGET
    share = int(free * EXAMPLE_SHARE)
    return min(EXAMPLE_BUDGET, share) if device.type == "cpu" else share


def _columns(
    per_token: int, longest: int, kept: int, free: int | None, device: torch.device
) -> int:
    """Columns of an example of `longest` tokens to work on at once; all if they fit."""
    room = example_budget(free, device)
    if per_token * longest <= room:
        return longest
    room = int(room * SPAN_SHARE)
    least, of_past = LEAST_COLUMNS * per_token, kept * longest
    if free is not None:
        if of_past + least > free:
            raise _too_long(longest, of_past + least, free, (free - least) // kept, device)
        room = min(room, free - of_past)
    return max(room // per_token, LEAST_COLUMNS)


def check_fits(per_token: int, longest: int, device: torch.device) -> int | None:
    """The free bytes of a device, if one example fits; see `token_budget`."""
    free, need = available_bytes(device), per_token * longest
    if free is not None and need > free:
        raise _too_long(longest, need, free, free // per_token, device)
    return free


def _too_long(longest: int, need: int, free: int, fit: int, device: torch.device) -> OutOfMemory:
    return OutOfMemory(
        f"One example of {longest} tokens needs about {need / 2**30:.1f} GB; {free / 2**30:.1f} GB"
        f" are free on {device}, enough for about {max(0, fit)} tokens."
    )


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
