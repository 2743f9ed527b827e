"""Parts of one cell in processes of their own, with a device and the model each.

Where a run has more workers than batches of cells, each worker has several devices. A cell that is
a sum of parts, such as scores that are means over pairs, may have them done there. Parts come back
in their order, so that the sum is the same to the last bit wherever they are done, as far as
devices and numbers of threads are alike.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from mechassay.errors import MechassayError
from mechassay.models.computing import Computing, chosen, computing
from mechassay.models.model import Model

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Spread:
    """Processes that parts of a cell may be done in, beside this one.

    Attributes:
        devices: one for each process; the first is that of this one.
        load: gives the model on a `device`; it travels to the processes.
    """

    devices: Sequence[str]
    load: Callable[..., Model]

    @contextmanager
    def started(
        self, model: Model
    ) -> Iterator[Callable[[Callable[[Model, Item], Result], Sequence[Item]], Iterator[Result]]]:
        """Start the processes; what is given maps a function of model and item over items, and
        gives results in their order.

        Args:
            model: that of this process, which does its share of the items.

        Raises:
            MechassayError: a process died, as when memory ran out.
        """
        context = multiprocessing.get_context("spawn")
        free = context.SimpleQueue()
        n, others = len(self.devices), self.devices[1:]
        for device in others:
            free.put(device)
        begin = (free, self.load, chosen(), torch.get_num_threads())
        with ProcessPoolExecutor(len(others), context, _begin, begin) as pool:

            def mapped(
                function: Callable[[Model, Item], Result], items: Sequence[Item]
            ) -> Iterator[Result]:
                elsewhere = [item for number, item in enumerate(items) if number % n]
                results = pool.map(_Part(function), elsewhere)
                for number, item in enumerate(items):
                    yield next(results) if number % n else function(model, item)

            try:
                yield mapped
            except BrokenProcessPool as error:
                raise MechassayError(
                    "A process for parts of the cell ended without a word. If memory was short,"
                    " name fewer --workers."
                ) from error
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


_HELD: list[tuple[Model, Computing]] = []
"""Of a process for parts: its model, and how it computes."""


def _begin(free: Any, load: Callable[..., Model], how: Computing, threads: int) -> None:
    start_worker(threads)
    _HELD[:] = [(load(device=free.get()), how)]


@dataclass(frozen=True)
class _Part:
    function: Callable[[Model, Any], Any]

    def __call__(self, item: Any) -> Any:
        (model, how) = _HELD[0]
        with computing(how.tf32, compiled=how.compiled):
            return self.function(model, item)


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
