"""How far a job is, with an estimate of the time left.

Jobs take a `progress` argument and call `with progress.track("label", total) as advance`. `BAR`
draws a bar on a terminal and in a notebook, and elsewhere (a log file, a cluster, CI) writes a line
to standard error every 30 seconds. `SILENT` shows nothing.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from importlib import import_module
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


@dataclass(frozen=True)
class Bar:
    """A bar with the rate and elapsed and remaining time, or lines where none can be drawn.

    Attributes:
        seconds: between lines, where there is no terminal and no notebook.
    """

    seconds: float = 30.0

    @contextmanager
    def track(self, label: str, total: int) -> Iterator[Advance]:
        display = notebook_display()
        if display is not None:
            shown: Any = display(_html(label, 0, total, 0.0), raw=True, display_id=True)
            with _counted(
                label, total, 0.5, lambda *at: shown.update(_html(*at), raw=True)
            ) as advance:
                yield advance
            return
        if not sys.stderr.isatty():
            with _counted(label, total, self.seconds, _write) as advance:
                yield advance
            return
        from rich.console import Console

        with drawn(Console(stderr=True)) as bar:
            task = bar.add_task(label, total=total)
            yield lambda done: bar.advance(task, done)


def notebook_display() -> Callable[..., Any] | None:
    """IPython's `display` where this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return getattr(import_module("IPython.display"), "display")  # noqa: B009 - no stubs


@contextmanager
def _counted(
    label: str, total: int, seconds: float, show: Callable[[str, int, int, float], object]
) -> Iterator[Advance]:
    """Calls `show(label, done, total, elapsed)` every so many seconds, and at the end if before."""
    begin = shown = time.monotonic()
    count = 0

    def advance(done: int) -> None:
        nonlocal count, shown
        count += done
        now = time.monotonic()
        if now - shown >= seconds:
            shown = now
            show(label, count, total, now - begin)

    yield advance
    if shown > begin:
        show(label, count, total, time.monotonic() - begin)


def _write(label: str, done: int, total: int, elapsed: float) -> None:
    sys.stderr.write(f"{line(label, done, total, elapsed)}\n")
    sys.stderr.flush()


def line(label: str, done: int, total: int, elapsed: float) -> str:
    """Progress as a line: `eap: 120 of 1,000, 3.10/s, 0:00:39 elapsed, 0:04:44 left`."""
    speed = done / elapsed if elapsed > 0 else 0.0
    left = f", {_clock((total - done) / speed)} left" if speed and done < total else ""
    return f"{label}: {done:,} of {total:,}, {rate(speed)}/s, {_clock(elapsed)} elapsed{left}"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _html(label: str, done: int, total: int, elapsed: float) -> dict[str, str]:
    text = line(label, done, total, elapsed)
    bar = f'<progress value="{done}" max="{max(1, total)}" aria-label="{escape(label)}"></progress>'
    return {"text/plain": text, "text/html": f"{bar} {escape(text)}"}


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
