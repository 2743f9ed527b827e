"""What tests do in the processes of a cell's parts."""

from __future__ import annotations

import os
import signal

import torch

from mechassay.models.computing import chosen
from mechassay.models.model import Model
from mechassay.testing.tiny import subject


def tiny_model(family: str, *, device: str) -> Model:
    """A model for a process; the device's name is kept for `where`."""
    os.environ["DEVICE_OF_PART"] = device
    return subject(family, torch.float64).model


def where(model: Model, item: int) -> tuple[int, int, str, str, int]:
    """The item, the process, its device, how it computes, and its threads."""
    device = os.environ["DEVICE_OF_PART"]
    return item, os.getpid(), device, chosen().tf32, torch.get_num_threads()


def dies(model: Model, item: int) -> int:
    """An item whose process is killed, but for the first."""
    if item:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def refuses(model: Model, item: int) -> int:
    """An item that cannot be done, but for the first."""
    if item:
        raise ValueError(f"no part {item}")
    return item
