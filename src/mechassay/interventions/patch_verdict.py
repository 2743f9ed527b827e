"""What a map of patching says, in sentences, from the tables of its record.

Of the residual stream: where the answer stands, layer by layer.

    source     a place other than the last token that is above one half at the first layer run
    leaves     the last layer at which a source is above one half
    arrives    the first layer at which the last token is above one half

"The answer moves from A to [last] between layers `leaves` and `arrives`." Above and below are
resolved: the share's interval lies on that side of one half. What is not lies between the two
layers, or is said. Of heads and MLPs: the largest shares above 0 (they help the answer) and below
(they work against it), as far as they are resolved from 0.

All these intervals hold at once for all measured cells of a map (`PatchMap.joint_intervals`), so
the largest of many may be named. A cell that is 0 or 1 by construction is in none of this: a
sentence needs a measured one. There is no verdict for fewer than 20 groups of pairs, and nothing
to locate unless clean prompts are resolved to do better than counterfactual ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from mechassay.results.page import TextTable
from mechassay.results.records import Record, Table
from mechassay.results.text import objective
from mechassay.stats.intervals import FEW_GROUPS
from mechassay.utils.display import counted, interval

COLUMNS = {"resid": "token", "mlp": "token", "heads": "head"}
"""What the columns of a part's map are."""
ALL_PROMPTS = "all prompts"
EXACT = 1e-4
"""By how much a share that is known may differ from it, for rounding."""
HALF = 0.5
NAMED = 3
"""Heads or MLPs that a sentence names on either side, and places that a sentence compares."""
LISTED = 8
"""Heads or MLPs on either side in a table."""
BY_CONSTRUCTION = "by construction"


@dataclass(frozen=True)
class MapCells:
    """One map of a record: cells as arrays [layers, columns], and of what they are.

    Attributes:
        low, high: of intervals that hold at once for all measured cells; the share itself where
            that is known.
        known: whether a share is 0 or 1 by construction.
        advantage: by how much clean prompts do better than counterfactual ones, and its ends.
        last_layer: of the model.
    """

    template: str
    part: str
    layers: list[int]
    headings: list[str]
    share: Float[np.ndarray, "layers columns"]
    low: Float[np.ndarray, "layers columns"]
    high: Float[np.ndarray, "layers columns"]
    known: Bool[np.ndarray, "layers columns"]
    n_pairs: int
    n_groups: int
    advantage: tuple[float, ...]
    last_layer: int

    @staticmethod
    def of(record: Record, template: str) -> MapCells:
        """The map of a template, or that of all prompts."""
        part = record.method.name
        own_cells = record.table("patches").where(template=template)
        # In the order of the model, whatever the order in which layers were asked for.
        rows = sorted(own_cells.rows(), key=lambda row: int(str(row["layer"])))
        cells = Table.of(own_cells.name, own_cells.keys, rows)
        (facts,) = record.table("maps").where(template=template).rows()
        layers = list(dict.fromkeys(int(str(x)) for x in cells.columns["layer"]))
        names = ("share", "joint_low", "joint_high", "by_construction")
        share, low, high, known = (cells.numbers(x).reshape(len(layers), -1) for x in names)
        fixed = known == 1
        headings = cells.columns[COLUMNS[part]][: share.shape[1]]
        numbers = (facts[name] for name in ("advantage", "low", "high"))
        return MapCells(
            template,
            part,
            layers,
            [str(x) for x in headings],
            share,
            np.where(fixed, share, low),
            np.where(fixed, share, high),
            fixed,
            int(str(facts["pairs"])),
            int(str(facts["groups"])),
            tuple(float("nan") if x is None else float(str(x)) for x in numbers),
            int(str(record.method.args["last_layer"])),
        )

    @property
    def n_measured(self) -> int:
        """Cells that have a share and are not known by construction."""
        return int((~self.known & ~np.isnan(self.share)).sum())

    @property
    def above(self) -> Bool[np.ndarray, "layers columns"]:
        """Whether a share is resolved above one half."""
        return self.low > HALF

    def place(self, column: int) -> str:
        """The part or the token of a column."""
        text = self.headings[column]
        if self.template == ALL_PROMPTS:
            return text
        at = "the last token" if column == len(self.headings) - 1 else f"token {column}"
        return f'{at} "{text.strip()}"'

    @property
    def sources(self) -> list[int]:
        """The columns but the last one that are above one half at the first layer."""
        return np.flatnonzero(self.above[0, :-1]).tolist()

    def share_text(self, row: int, column: int) -> str:
        """A share with its interval."""
        if self.known[row, column]:
            return f"{self.share[row, column] + 0.0:.2g} {BY_CONSTRUCTION}"
        return interval(*(float(x[row, column]) for x in (self.share, self.low, self.high)))

    def at(self, row: int) -> str:
        """The layer of a row."""
        return "the embedding" if self.layers[row] < 0 else f"layer {self.layers[row]}"

    def between(self, first: int, second: int) -> str:
        """From the layer of a row to that of a later one."""
        if self.layers[first] < 0:
            return f"between {self.at(first)} and {self.at(second)}"
        return f"between layers {self.layers[first]} and {self.layers[second]}"

    def during(self, rows: Sequence[int]) -> str:
        """The layers of some rows, neighbours as a range."""
        runs: list[list[int]] = []
        for row in rows:
            if runs and row == runs[-1][-1] + 1:
                runs[-1].append(row)
            else:
                runs.append([row])
        ends = (sorted({run[0], run[-1]}) for run in runs)
        return ", ".join(" to ".join(map(self.at, pair)) for pair in ends)

    def largest(self, row: int) -> list[int]:
        """The columns but the last one with the largest shares of a layer, the largest first."""
        order = np.argsort(-np.nan_to_num(self.share[row, :-1], nan=-np.inf), kind="stable")
        return order[:NAMED].tolist()

    def name(self, row: int, column: int) -> str:
        """A head, or an MLP at a token."""
        if self.part == "heads":
            return f"head {self.layers[row]}.{self.headings[column]}"
        return f"MLP {self.layers[row]} at {self.place(column)}"

    def resolved(self, sign: int) -> list[tuple[int, int]]:
        """The measured cells that are resolved from 0 on one side, the farthest first."""
        shares, ends = sign * self.share, self.low if sign > 0 else -self.high
        rows, columns = np.nonzero((ends > 0) & (shares > EXACT) & ~self.known)
        places = zip(rows.tolist(), columns.tolist(), strict=True)
        return sorted(places, key=lambda place: -shares[place])


def templates(record: Record) -> list[str]:
    """The maps of a record, that of all prompts first, if there is one."""
    return [str(x) for x in record.table("maps").columns["template"]]


def verdict(record: Record) -> str:
    """What the first map of a record says: where the answer stands, or what helps it."""
    m = MapCells.of(record, templates(record)[0])
    low, high = m.advantage[1:]
    if np.isnan(m.share).all():
        first = "No share is defined: the unpatched runs do not differ."
    elif m.n_measured == 0:
        first = (
            f"Nothing is measured: every cell is 0 or 1 {BY_CONSTRUCTION}, from the prompts and the"
            " model's structure alone."
        )
    elif m.n_groups < FEW_GROUPS:
        first = (
            f"No verdict: it needs {FEW_GROUPS} groups of pairs, and the map is of {m.n_groups}."
        )
    elif high < 0:
        first = "No answer to locate: the model does better on the counterfactual prompts."
    elif not low > 0:
        first = (
            "Nothing is seen to move: the model is not resolved to do better on clean prompts than"
            " on counterfactual ones."
        )
    else:
        first, *more = _standing(m) if m.part == "resid" else _helping(m)
        return " ".join([_with_n(first, m), *more, *_left_out(m), _unpatched(record, m)])
    return f"{_with_n(first, m)} {_unpatched(record, m)}"


def _with_n(sentence: str, m: MapCells) -> str:
    """A sentence that ends with the number of pairs."""
    n = f"{counted(m.n_pairs, 'pair')} in {counted(m.n_groups, 'group')}"
    of = "" if m.template in ("", ALL_PROMPTS) else f" of {m.template}"
    return f"{sentence.removesuffix('.')} (n = {n}{of})."


def _unpatched(record: Record, m: MapCells) -> str:
    """By how much the model does better on clean prompts."""
    return (
        f"The advantage of clean over counterfactual prompts, unpatched, is"
        f" {interval(*m.advantage)} in {objective(record)}."
    )


def _standing(m: MapCells) -> Iterator[str]:
    """Where the answer stands in the residual stream, layer by layer."""
    end, above, sources = m.place(len(m.headings) - 1), m.above, m.sources
    held = np.flatnonzero(above[:, sources].any(axis=1)).tolist()
    reached = np.flatnonzero(above[:, -1]).tolist()
    leaves, arrives = held[-1] if held else -1, reached[0] if reached else len(m.layers)
    names = " and ".join(map(m.place, sources))
    if not (above & ~m.known).any():
        yield "Nothing is located: no measured place is resolved above one half at any layer."
    elif not sources and arrives == 0:
        yield f"The answer stands at {end} from {m.at(0)} on, the first that was run."
    elif not sources:
        moves = f"reaches {end} by {m.at(arrives)}" if reached else f"does not reach {end}"
        yield (
            f"The answer {moves}, and no single place is resolved above one half at {m.at(0)}, the"
            " first that was run."
        )
    elif not reached:
        yield (
            f"The answer stands at {names} up to {m.at(leaves)}, and does not reach {end} by"
            f" {m.at(-1)}, the last that was run."
        )
    elif arrives <= leaves:
        has = "has" if len(sources) == 1 else "have"
        yield (
            f"The answer reaches {end} by {m.at(arrives)} while {names} still {has} it, up to"
            f" {m.at(leaves)}."
        )
    elif m.known[arrives, -1] and (m.high < HALF)[leaves + 1 : arrives].all(axis=1).any():
        yield (
            f"The answer leaves {names} after {m.at(leaves)}, and stands at no single place until"
            f" {m.at(arrives)}, where {end} has all of it {BY_CONSTRUCTION}."
        )
    else:
        yield f"The answer moves from {names} to {end} {m.between(leaves, arrives)}."
    yield from _numbers(m, leaves, arrives)


def _numbers(m: MapCells, leaves: int, arrives: int) -> Iterator[str]:
    """The shares at both ends, places between them, and what is not resolved outside them."""
    above, n_rows, last = m.above, len(m.layers), m.share.shape[1] - 1
    end = m.place(last)
    clauses = [
        f"{m.place(column)} is last above one half at {m.at(row)} ({m.share_text(row, column)})"
        for column in m.sources
        for row in [int(np.flatnonzero(above[:, column])[-1])]
    ]
    if not m.sources:
        shares = [f"{m.place(column)} {m.share_text(0, column)}" for column in m.largest(0)]
        clauses.append(f"The largest shares at {m.at(0)} are {', '.join(shares)}")
    own = np.where(m.known[:, last] | np.isnan(m.share[:, last]), -np.inf, m.share[:, last])
    if arrives < n_rows and not m.known[arrives, last]:
        clauses.append(
            f"{end} is first above one half at {m.at(arrives)} ({m.share_text(arrives, last)})"
        )
    elif np.isfinite(own).any():
        most = int(own.argmax())
        clauses.append(
            f"{end} has at most {m.share_text(most, last)}, at {m.at(most)}, where measured"
        )
    yield f"{'; '.join(clauses)}."
    for column in range(last):
        rows = np.flatnonzero(above[:, column] & ~m.known[:, column]).tolist()
        if rows and column not in m.sources:
            yield f"On the way, {m.place(column)} is above one half at {m.during(rows)}."
    unsure = ~above & ~(m.high < HALF)
    for column in (*m.sources, last):
        after, before = range(max(leaves + 1, arrives), n_rows), range(min(arrives, leaves + 1))
        rows = [row for row in (after if column < last else before) if unsure[row, column]]
        if rows:
            yield f"{m.place(column)} is not resolved from one half at {m.during(rows)}."
    rows = [row for row in range(arrives, n_rows) if m.high[row, last] < HALF]
    if rows:
        yield f"{end} is below one half again at {m.during(rows)}."


def _helping(m: MapCells) -> Iterator[str]:
    """The heads or MLPs that help the answer most, and those that work against it."""
    helpers, opponents = m.resolved(1), m.resolved(-1)
    best, worst = (
        ", ".join(f"{m.name(*place)} ({m.share_text(*place)})" for place in places[:NAMED])
        for places in (helpers, opponents)
    )
    one = "head" if m.part == "heads" else "MLP at a token"
    if best and worst:
        yield f"The answer is helped most by {best}, and opposed most by {worst}."
    elif best:
        yield f"The answer is helped most by {best}; no {one} is resolved to oppose it."
    elif worst:
        yield f"No {one} is resolved to help the answer; it is opposed most by {worst}."
    else:
        shares = np.where(m.known | np.isnan(m.share), 0.0, np.abs(m.share))
        row, column = (int(x) for x in np.unravel_index(int(shares.argmax()), shares.shape))
        yield (
            f"No {one} is resolved to help or to oppose the answer; the largest share is that of"
            f" {m.name(row, column)} ({m.share_text(row, column)})."
        )
    yield (
        f"Of {counted(m.n_measured, 'measured cell')}, taken together, {len(helpers)} are resolved"
        f" to help and {len(opponents)} to oppose."
    )


def _left_out(m: MapCells) -> Iterator[str]:
    """Which layers were run, if not all."""
    if len([layer for layer in m.layers if layer >= 0]) <= m.last_layer:
        layers = (
            ", ".join(map(m.at, range(len(m.layers))))
            if len(m.layers) <= LISTED
            else (f"{len(m.layers)} layers from {m.at(0)} to {m.at(-1)}")
        )
        yield f"Only {layers} of {m.last_layer + 1} layers were run."


def answer_table(record: Record, title: str) -> TextTable:
    """What the verdict is of: of the residual stream the shares of its places by layer, else the
    heads or MLPs with the largest shares on either side.
    """
    m = MapCells.of(record, templates(record)[0])
    of = "" if m.template in ("", ALL_PROMPTS) else f" of {m.template}"
    note = (
        f"{counted(m.n_pairs, 'pair')} in {counted(m.n_groups, 'group')}{of}. Brackets hold for all"
        f" {m.n_measured:,} measured cells of the map at once, with 95 %."
    )
    if m.part == "resid":
        places = m.sources or m.largest(0)
        passed = (m.above & ~m.known)[:, :-1].any(axis=0)
        places += [x for x in np.flatnonzero(passed).tolist() if x not in places]
        places = [*sorted(places[:LISTED]), m.share.shape[1] - 1]
        rows = [
            ("embedding" if layer < 0 else str(layer), *(m.share_text(row, x) for x in places))
            for row, layer in enumerate(m.layers)
        ]
        headings = [m.place(column) for column in places]
        return TextTable.of(title, ("layer", *headings), rows, caption=note)
    cells: list[tuple[str, str, str]] = []
    resolved = {*m.resolved(1), *m.resolved(-1)}
    for sign, does in ((1, "helps"), (-1, "opposes")):
        shares = np.where(m.known, np.nan, sign * m.share)
        rows, columns = np.nonzero(shares > EXACT)
        order = sorted(zip(rows.tolist(), columns.tolist(), strict=True), key=lambda x: -shares[x])
        cells += [
            (m.name(*place), m.share_text(*place), does if place in resolved else "not resolved")
            for place in order[:LISTED]
        ]
    columns = ("head" if m.part == "heads" else "MLP", "share", "the answer")
    return TextTable.of(title, columns, cells, words=True, caption=note)
