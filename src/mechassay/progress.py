"""Progress bars with an estimate of the time left, on standard error.

Jobs take a `progress` argument and call `with progress.track("label", total) as advance`.
`BAR` draws only where standard error is a terminal; `SILENT` never does.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress

Advance = Callable[[int], None]
LABEL = 28
"""Letters of a label that are shown: with counts of millions the bar's line fits into 80."""


class Progress(Protocol):
    """Shows how far a job is."""

    def track(self, label: str, total: int) -> AbstractContextManager[Advance]:
        """A bar for `total` units; the function it yields moves it on."""
        ...


class Bar:
    """A bar with the rate and elapsed and remaining time, on a terminal."""

    @contextmanager
    def track(self, label: str, total: int) -> Iterator[Advance]:
        if not sys.stderr.isatty():
            with SILENT.track(label, total) as advance:
                yield advance
            return
        from rich.console import Console

        with drawn(Console(stderr=True)) as bar:
            task = bar.add_task(label, total=total)
            yield lambda done: bar.advance(task, done)


def drawn(console: Console) -> RichProgress:
    """What draws bars. In a narrow terminal the bar gets shorter; a very long label is cut."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column
    from rich.text import Text

    class Rate(ProgressColumn):
        """Units a second."""

        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{rate(task.speed)}/s")

    whole: Any = {"table_column": Column(no_wrap=True)}
    label = Column(no_wrap=True, max_width=LABEL, overflow="ellipsis")
    columns = (
        TextColumn("{task.description}", markup=False, table_column=label),
        BarColumn(),
        MofNCompleteColumn(**whole),
        Rate(**whole),
        TimeElapsedColumn(**whole),
        TextColumn("left"),
        TimeRemainingColumn(**whole),
    )
    return Progress(*columns, console=console, transient=True)


def rate(speed: float) -> str:
    """A rate with three significant digits, or all before the point: 29,330 or 0.123."""
    if speed <= 0:
        return "0"
    return f"{speed:,.{max(0, 2 - math.floor(math.log10(speed)))}f}"


class Silent:
    """Draws nothing."""

    @contextmanager
    def track(self, label: str, total: int) -> Iterator[Advance]:
        yield lambda done: None


BAR: Progress = Bar()
SILENT: Progress = Silent()
