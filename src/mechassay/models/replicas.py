"""The same model in other processes, each with a device of its own: data parallelism over pairs.

A model with `replicas` evaluates circuits, and scores parts of pairs, in all of their processes
(`Model.everywhere`). Results come back in the order of the items, so that a sum of them is the same
to the last bit wherever they are computed, as far as devices and numbers of threads are alike.
Processes start when they are first needed, and end with the model.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle  # noqa: TID251  # Between processes of one command, of what they made themselves.
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any, TypeVar

import torch

from mechassay.errors import MechassayError
from mechassay.models.computing import Computing, chosen, computing

M = TypeVar("M")
Item = TypeVar("Item")
Result = TypeVar("Result")


class Replicas:
    """Processes with a model each.

    Args:
        devices: one for each process; the first is that of this one.
        load: gives the model on a `device`; it travels to the processes.
    """

    def __init__(self, devices: Sequence[str], load: Callable[..., Any]) -> None:
        self.devices, self.load = tuple(devices), load
        self._pool: ProcessPoolExecutor | None = None

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context, others = multiprocessing.get_context("spawn"), self.devices[1:]
            free = context.SimpleQueue()
            for device in others:
                free.put(device)
            begin = (free, self.load, torch.get_num_threads())
            self._pool = ProcessPoolExecutor(len(others), context, _begin, begin)
        return self._pool

    def map(
        self,
        function: Callable[[M, Item], Result],
        model: M,
        items: Sequence[Item],
        here: Callable[[M, Item], Result],
    ) -> Iterator[Result]:
        """Yield the result of every item, in order; this process runs `here` with `model`."""
        n = len(self.devices)
        try:
            part = partial(_do, pickle.dumps(function), chosen())
            elsewhere = [pickle.dumps(item) for number, item in enumerate(items) if number % n]
            results = self._started().map(part, elsewhere)
            for number, item in enumerate(items):
                yield pickle.loads(next(results)) if number % n else here(model, item)
        except GeneratorExit:
            raise  # All that was asked for came back: the processes stay for the next call.
        except BaseException as error:
            self.close(wait=False)
            if not isinstance(error, BrokenProcessPool):
                raise
            raise MechassayError(
                "A process for parts of the pairs ended without a word. If memory was short, name"
                " fewer --workers."
            ) from error

    def close(self, *, wait: bool = True) -> None:
        """End the processes; what is not begun is lost."""
        if self._pool is not None:
            self._pool.shutdown(wait=wait, cancel_futures=True)
            self._pool = None


_HELD: list[Any] = []
"""Of a process of replicas: its model."""


def _begin(free: Any, load: Callable[..., Any], threads: int) -> None:
    start_worker(threads)
    _HELD[:] = [load(device=free.get())]


def _do(function: bytes, how: Computing, item: bytes) -> bytes:
    """All travels as bytes: a queue would move the memory of tensors away under arrays that view
    it, and hold an open file for each.
    """
    with computing(how.tf32, compiled=how.compiled):
        return pickle.dumps(pickle.loads(function)(_HELD[0], pickle.loads(item)))


def start_worker(threads: int) -> None:
    """What every worker process begins with: Ctrl-C is for the parent, which ends its workers; a
    worker whose parent was killed ends too.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
