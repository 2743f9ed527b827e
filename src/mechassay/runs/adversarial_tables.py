"""What was found of a circuit's divergences as tables of its record, in long form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from mechassay.adversarial.pools import Pool
from mechassay.adversarial.statistics import MAP_NAMES
from mechassay.adversarial.worst import WorstCase
from mechassay.records import Table
from mechassay.stats.resampled import Half

RESULT, EMPTY = "result", "control:empty"
Rows = Mapping[str, Any]
ENDS = ("value", "low", "high")


def summary(parts: Mapping[str, Sequence[Rows]]) -> Table:
    """Statistics of the circuit and of its controls."""
    rows = [
        {"of": of, "statistic": row["name"], **{key: row[key] for key in row if key != "name"}}
        for of, found in parts.items()
        for row in found
    ]
    return Table.of("summary", ("of", "statistic"), rows)


def exceedance(parts: Mapping[str, Sequence[Rows]]) -> Table:
    """Shares of pairs above thresholds."""
    rows = [{"of": of, **row} for of, found in parts.items() for row in found]
    return Table.of("exceedance", ("of", "above"), rows)


def histograms(ranges: Mapping[str, Rows]) -> Table:
    """Counts in bins, of the circuit's own range and of all."""
    rows = [
        {
            "range": name,
            "low": found["edges"][place],
            "high": found["edges"][place + 1],
            "circuit": count,
            "empty": found["corrupted"][place],
            "random-paths": found["random_paths"][place],
        }
        for name, found in ranges.items()
        for place, count in enumerate(found["circuit"])
    ]
    return Table.of("histogram", ("range", "low"), rows)


def worst(
    lists: Mapping[str, Sequence[WorstCase]],
    empty: Float[np.ndarray, "*pairs"],
    prompts: Mapping[str, Pool],
) -> list[Table]:
    """The worst pairs, the most likely next tokens of each, and the parts of their prompts."""
    rows = [
        {
            "list": name,
            "rank": rank,
            "clean": case.clean,
            "corrupted": case.corrupted,
            "value": case.value,
            "again": case.again,
            "empty": float(empty[(case.clean, case.corrupted)[: empty.ndim]]),
            "agrees": case.agrees,
            "clean prompt": prompts["clean"].prompts[case.clean].text,
            "corrupted prompt": prompts["corrupted"].prompts[case.corrupted].text
            if "corrupted" in prompts
            else None,
        }
        for name, cases in lists.items()
        for rank, case in enumerate(cases)
    ]
    unique = {(case.clean, case.corrupted): case for cases in lists.values() for case in cases}
    return [
        Table.of("worst pairs", ("list", "rank"), rows),
        Table.of("tokens", ("clean", "corrupted", "of", "rank"), _tokens(unique.values())),
        Table.of("parts", ("side", "prompt", "part"), _parts(unique, prompts)),
    ]


def _tokens(cases: Any) -> Iterator[Rows]:
    for case in cases:
        for of, tokens in (("model", case.model), ("circuit", case.circuit)):
            for rank, token in enumerate(tokens):
                place = {"clean": case.clean, "corrupted": case.corrupted, "of": of, "rank": rank}
                yield {**place, "text": token.text, "logit": token.logit}


def _parts(pairs: Any, prompts: Mapping[str, Pool]) -> Iterator[Rows]:
    places = {(side, pair[number]) for pair in pairs for number, side in enumerate(prompts)}
    for side, number in sorted(places):
        for part, (begin, end) in prompts[side].prompts[number].spans.items():
            yield {"side": side, "prompt": number, "part": part, "begin": begin, "end": end}


def halves(found: Sequence[Half]) -> Table:
    """A grid's pairs of one template, and of two."""
    rows = [
        {
            "pairs": half.pairs,
            "of": of,
            "statistic": name,
            "n": half.n,
            **dict(zip(ENDS, numbers, strict=True)),
        }
        for half in found
        for of, statistics in (
            (RESULT, half.circuit),
            (EMPTY, half.empty),
            ("left", {"mean": half.left}),
        )
        for name, numbers in statistics.items()
    ]
    return Table.of("templates", ("pairs", "of", "statistic"), rows)


def labels(groups: Sequence[Rows]) -> list[Table]:
    """The labels of each field and their test; and the fields."""
    about = ("side", "strata", "strata used")
    rows = [
        {
            "field": group["name"],
            "label": label,
            **{
                key: column[place]
                for key, column in group.items()
                if key not in ("name", "labels", *about)
            },
        }
        for group in groups
        for place, label in enumerate(group["labels"])
    ]
    fields = [{"field": group["name"], **{key: group[key] for key in about}} for group in groups]
    return [
        Table.of("labels", ("field", "label"), rows),
        Table.of("fields", ("field",), fields),
    ]


def heat_maps(maps: Sequence[Rows]) -> list[Table]:
    """The cells of each map, what is left out of it, and the empty circuit's numbers."""
    cells: list[Rows] = []
    left_out: list[Rows] = []
    for found in maps:
        fields = dict(zip(("rows", "columns"), found["fields"], strict=True))
        cells += [
            {
                **fields,
                "row": row,
                "column": column,
                **{name: found[name][i][j] for name in MAP_NAMES},
            }
            for i, row in enumerate(found["labels"][0])
            for j, column in enumerate(found["labels"][1])
        ]
        left_out += [
            {**fields, "field": field, "count": count, "largest": largest}
            for field, count, largest in zip(
                found["fields"], found["left_out"], found["largest_left_out"], strict=True
            )
        ]
    empty = maps[0]["empty"] if maps else {}
    statistics = [{"statistic": name, "value": value} for name, value in empty.items()]
    return [
        Table.of("heat maps", ("rows", "columns", "row", "column"), cells),
        Table.of("labels left out of heat maps", ("rows", "columns", "field"), left_out),
        Table.of("empty circuit in heat maps", ("statistic",), statistics),
    ]
