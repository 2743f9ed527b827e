"""Progress bars with an estimate of the time left, on standard error.

Jobs take a `progress` argument and call `with progress.track("label", total) as advance`.
`BAR` draws only where standard error is a terminal; `SILENT` never does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

Advance = Callable[[int], None]


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
        from rich.text import Text

        class Rate(ProgressColumn):
            """Units a second."""

            def render(self, task: Task) -> Text:
                return Text("" if task.speed is None else f"{task.speed:,.4g}/s")

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            Rate(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda done: bar.advance(task, done)


class Silent:
    """Draws nothing."""

    @contextmanager
    def track(self, label: str, total: int) -> Iterator[Advance]:
        yield lambda done: None


BAR: Progress = Bar()
SILENT: Progress = Silent()
