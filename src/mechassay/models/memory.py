"""How many tokens to work on at once: a byte budget divided by what one token needs.

On a CPU the budget is small, so that a working set stays near the caches; on a GPU it is a
share of what is free. One example that needs more than the machine has is refused before
anything is allocated.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mechassay.errors import OutOfMemory, first_line

CPU_BUDGET = 384 * 2**20
GPU_SHARE = 0.25


def available_bytes(device: torch.device) -> int | None:
    """Memory that a run on `device` may still take; None where the platform does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            return next(
                int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")
            )
    except (OSError, StopIteration):
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
    budget = CPU_BUDGET if device.type == "cpu" else int((free or 0) * GPU_SHARE)
    return max(longest, budget // max(per_token, 1))


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
