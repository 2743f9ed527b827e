"""How values and jobs show themselves: a line of text, small HTML in a notebook, a progress bar.

`OneLine` is the base of values that would print their arrays. HTML is built from text that is
escaped here, and from SVGs of ours; its colours are those of the page around it.

A number is rounded to what its interval supports: two digits of the interval's half-width if it
begins with 1, 2 or 3, else one (the rule of the Particle Data Group).

Jobs take a `progress` argument and call `with progress.track("label", total) as advance`. `BAR`
draws a bar with an estimate of the time left, on a terminal and in a notebook. Elsewhere (a log
file, a cluster, CI) it writes a line to standard error every 30 seconds. `SILENT` shows nothing.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from mechassay.errors import MissingExtra

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress


UNDEFINED = "undefined"


def number(value: float, low: float = math.nan, high: float = math.nan) -> str:
    """A value to the precision its interval supports; two decimals where there is no interval."""
    if not math.isfinite(value):
        return UNDEFINED if math.isnan(value) else f"{value}"
    return _fixed(value, _decimals(low, high))


def interval(value: float, low: float, high: float, *, least: int = 0) -> str:
    """A value and its interval, with at least so many decimals: `1.97 [1.71, 2.20]`."""
    if not (math.isfinite(value) and math.isfinite(low) and math.isfinite(high)):
        return number(value, low, high)
    decimals = max(least, _decimals(low, high))
    text = _fixed(value, decimals)
    return f"{text} [{_fixed(low, decimals)}, {_fixed(high, decimals)}]"


def shortened(text: str, most: int, keep: int | None = None) -> str:
    """A text without its middle where it is longer than `most` letters.

    Args:
        keep: letters of its beginning that stay; half of `most` if not given.
    """
    if len(text) <= most:
        return text
    keep = most // 2 if keep is None else keep
    return f"{text[:keep]}…{text[len(text) - (most - 1 - keep) :]}"


def first_sentence(text: str) -> str:
    """What a docstring begins with, in one line."""
    line = " ".join(text.partition("\n\n")[0].split())
    match = re.match(r".*?[.?!](?=\s|$)", line)
    return match[0] if match else line


def counted(n: int, one: str, many: str = "") -> str:
    """How many there are of something: `1 row`, `2,000 rows`.

    Args:
        one: what one of them is called.
        many: what several are called; `one` with an s if not given.
    """
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def share(fraction: float) -> str:
    """A fraction as a percentage: `0.1 %`, in which lines do not break."""
    return f"{100 * fraction:.3g}\u00a0%"


def _decimals(low: float, high: float) -> int:
    half = (high - low) / 2
    if not math.isfinite(half) or half <= 0:
        return 2
    power = math.floor(math.log10(half))
    digits = 2 if half / 10**power < 3.55 else 1
    return min(max(digits - 1 - power, 0), 3)


def _fixed(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    return text.lstrip("-") if float(text) == 0 else text


LONGEST = 160
"""Characters of a value's line, roughly."""


class RawText(str):
    """Words that stand in a line as they are."""

    __slots__ = ()


class OneLine:
    """A dataclass that prints as one line: arrays by their shape, collections by their length."""

    def __repr__(self) -> str:
        return line(type(self).__name__, self.repr_fields())

    def repr_fields(self) -> dict[str, Any]:
        """What the line says: names and values."""
        if not is_dataclass(self):
            return {}
        return {field.name: getattr(self, field.name) for field in fields(self) if field.repr}

    def _repr_html_(self) -> str:
        """The same in a notebook, a row a name."""
        return html_facts(
            type(self).__name__, {k: briefly(v) for k, v in self.repr_fields().items()}
        )


def line(kind: str, facts: Mapping[str, Any]) -> str:
    """A value in one line: `Recovery(auroc=0.91, n_true=9)`."""
    parts: list[str] = []
    for name, value in facts.items():
        if sum(map(len, parts)) > LONGEST:
            parts.append("…")
            break
        parts.append(f"{name}={briefly(value)}")
    return f"{kind}({', '.join(parts)})"


def briefly(value: Any) -> str:
    """A value within a line."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        shape, dtype = ", ".join(map(str, value.shape)), str(value.dtype).removeprefix("torch.")
        return f"{dtype}[{shape}]"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, RawText):
        return f"<{value}>"
    if isinstance(value, str):
        return repr(shortened(value, 48))
    if isinstance(value, tuple) and hasattr(value, "low") and hasattr(value, "high"):
        low, high = value[:2]
        return f"[{low:.3g}, {high:.3g}]"
    if isinstance(value, Mapping):
        return f"<{len(value)} items>" if len(value) else "{}"
    if isinstance(value, Sequence | set | frozenset):
        parts = [briefly(part) for part in value] if len(value) <= 4 else []
        text = f"({', '.join(parts)}{',' * (len(parts) == 1)})"
        return text if parts and len(text) <= 48 else f"<{len(value):,} items>"
    return shortened(" ".join(repr(value).split()), 80)


# Tables


def data_frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    """Columns as a pandas DataFrame.

    Raises:
        MissingExtra: pandas is not installed.
    """
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise MissingExtra("to_pandas()", "pandas", "pandas") from None
    return pandas.DataFrame(dict(columns))


NOTEBOOK_ROWS = 10
"""Rows of pairs, scores or interventions that a notebook shows."""


class Tabular:
    """A value that is a table: its columns, and those as a pandas DataFrame."""

    def columns(self) -> Mapping[str, Sequence[Any]]:
        """The columns by name, all of one length."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """The columns as a pandas DataFrame.

        Raises:
            MissingExtra: pandas is not installed.
        """
        return data_frame(self.columns())


# HTML

_CELL = 'style="text-align: left; padding: 0.15em 0.8em 0.15em 0"'


def html_facts(title: str, facts: Mapping[str, Any], *more: str) -> str:
    """A heading, names with their values, and more markup of ours below them."""
    rows = "".join(
        f"<tr><th {_CELL}>{escape(str(name))}</th><td {_CELL}>{escape(str(value))}</td></tr>"
        for name, value in facts.items()
    )
    table = f"<table>{rows}</table>" if rows else ""
    return f"<div><strong>{escape(title)}</strong>{table}{''.join(more)}</div>"


def html_table(headings: Sequence[str], rows: Iterable[Sequence[Any]], note: str = "") -> str:
    """A table of text, with a note below it."""
    head = "".join(f"<th {_CELL}>{escape(name)}</th>" for name in headings)
    body = "".join(
        "<tr>" + "".join(f"<td {_CELL}>{escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" + html_note(note)


def html_note(text: str) -> str:
    """A small line."""
    return f"<div><small>{escape(text)}</small></div>" if text else ""


def signed(value: float) -> str:
    """A score for people."""
    return "not scored" if math.isnan(value) else format(value, "+.3g")


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
            handle: Any = display(_html(label, 0, total, 0.0), raw=True, display_id=True)
            # What a notebook shows stays in it: a short bar too ends as it was left.
            with _counted(
                label, total, 0.5, lambda *at: handle.update(_html(*at), raw=True), last=True
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
    label: str,
    total: int,
    seconds: float,
    show: Callable[[str, int, int, float], object],
    last: bool = False,
) -> Iterator[Advance]:
    """Calls `show(label, done, total, elapsed)` every so many seconds, and at the end if before
    or if `last`, whatever ended it.
    """
    begin = last_time = time.monotonic()
    count = 0

    def advance(done: int) -> None:
        nonlocal count, last_time
        count += done
        now = time.monotonic()
        if now - last_time >= seconds:
            last_time = now
            show(label, count, total, now - begin)

    try:
        yield advance
    finally:
        if last or last_time > begin:
            show(label, count, total, time.monotonic() - begin)


def _write(label: str, done: int, total: int, elapsed: float) -> None:
    sys.stderr.write(f"{progress_line(label, done, total, elapsed)}\n")
    sys.stderr.flush()


def progress_line(label: str, done: int, total: int, elapsed: float) -> str:
    """Progress as a line: `eap: 120 of 1,000, 3.10/s, 0:00:39 elapsed, 0:04:44 left`."""
    speed = done / elapsed if elapsed > 0 else 0.0
    left = f", {_clock((total - done) / speed)} left" if speed and done < total else ""
    return f"{label}: {done:,} of {total:,}, {rate(speed)}/s, {_clock(elapsed)} elapsed{left}"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _html(label: str, done: int, total: int, elapsed: float) -> dict[str, str]:
    text = progress_line(label, done, total, elapsed)
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
