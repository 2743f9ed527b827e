"""Pages of adversarial evaluations and of searches for the worst pair.

The page of an evaluation shows how far circuits are from the model on every pair of prompts.
From top to bottom: failing controls; what was found, a sentence a circuit; controls; all
circuits in one table; for each circuit its histogram (figures 1 to 6 of Uit de Bos and
Garriga-Alonso 2024), its distribution (their tables 3 and 7), its worst pairs (tables 4 to 6),
the fields whose labels are worse (tested), heat maps of two fields (figures 7 to 10); how to
read it; what was run.

The page of a search shows for each circuit the lower bound, its pair, and all climbs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle, zip_longest
from typing import Any

from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

from mechassay.adversarial.field_tables import (
    HeatMap,
    draw_heat_map,
    groups_of,
    halves,
    heat_maps_of,
    label_table,
    map_words,
    template_table,
    template_text,
    worse_labels_text,
)
from mechassay.adversarial.hill_climbing import bound_text
from mechassay.results.curves import EMPTY, labels
from mechassay.results.page import (
    NOTHING,
    Block,
    Column,
    Figure,
    Fold,
    Heading,
    Page,
    Report,
    Row,
    Section,
    Text,
    TextTable,
)
from mechassay.results.plots import PALETTE, draw_distribution, draw_histogram, draw_histograms
from mechassay.results.records import Record
from mechassay.results.sections import (
    checks_section,
    failed_checks,
    failures_table,
    framed,
    measures_table,
)
from mechassay.results.text import ROUNDING, Numbers, nats, plain_number, summary, with_interval
from mechassay.stats.bootstrap import LEAST
from mechassay.utils.display import counted, share

MOST_PANELS = 4
"""Circuits in the first figure."""
SHORT = 14
"""Letters of a circuit's name that a console of 80 has room for."""
FILE_ENDING = re.compile(r"\.(safetensors|json|pt)(?=[@:]|$)")
RANDOM = {"control:random-paths": "random paths", "control:random": "random edges"}
WORDS = {
    "grid": "every clean prompt with every corrupted one",
    "independent": "pairs of independently drawn clean and corrupted prompts",
    "matched": "clean prompts, each with its own corrupted prompt",
    "clean prompts": "clean prompts, with constants on ablated edges",
}
EXACT = (
    "the interval of the mean is Student's, those of percentiles and shares and all upper bounds"
    " are exact for independent"
)
BOUNDS = {
    "grid": (
        "intervals by a bootstrap of rows and columns, upper bounds by the shortfall bound for the"
        " smaller side of the grid"
    ),
    "same": (
        "intervals by a bootstrap of rows and columns; upper bounds by the shortfall bound, for a"
        " population in which the values that prompts agree in have the shares that they have here"
    ),
    "independent": f"{EXACT} pairs",
    "matched": f"{EXACT} pairs",
    "clean prompts": f"{EXACT} prompts",
}
READING = {
    "KL": (
        "KL(M(x) ‖ C(x, x̃)) at the last token, in nats: how far the circuit's next-token"
        " distribution is from the model's. The circuit's edges carry the clean prompt x; all"
        " others carry the corrupted prompt x̃, or constants."
    ),
    "Empty circuit": (
        "KL(M(x) ‖ M(x̃)): no edge carries the clean prompt. A circuit whose distribution is close"
        " to this one explains nothing, however it looks by itself."
    ),
    "Random paths": (
        "As many live edges as the circuit has, on random paths from input to logits, on a part of"
        " the pairs: what a circuit of its size does that was not looked for."
    ),
    "Random edges": (
        "As many edges as the circuit has, drawn uniformly, on the same part. Few or none are live"
        " while a circuit is sparse; with none it is the empty circuit."
    ),
    "Live edges": (
        "Edges on some path from input to logits within the circuit; the others cannot change its"
        " output."
    ),
    "Brackets": (
        "An interval that covers the true value of the circuit with confidence 95 %; a dash is an"
        " end that needs more pairs. Without brackets, a percentile or share of a sample has no"
        f" interval: too few prompts lie beyond it. On a grid that is fewer than {LEAST} of the"
        " smaller side's prompts (the 99th percentile of 100 × 100 pairs has 1), and for the mean"
        f" fewer than {LEAST} in all: a bootstrap of so few covers far less than it says. Minimum,"
        " maximum and standard deviation never have one."
    ),
    "Left of empty": (
        "The circuit's mean divergence over the empty circuit's, on the same pairs: 100 % is a"
        " circuit that explains nothing. Pairs of different templates are built from different"
        " sentences; no circuit was found on such."
    ),
    "z": "Difference from the mean in standard deviations.",
    "Upper bound": (
        "With confidence 95 % the percentile of the whole population is at most this. The largest"
        " value of a sample bounds nothing: there is always a worse pair to be found."
    ),
    "Worse labels": (
        "A label is called worse if the 99th percentile of its prompts exceeds that of the rest by"
        " more than labels permuted between prompts do, and by the least effect worth reporting."
        " Labels are permuted, and compared, within strata: prompts of one template whose words for"
        " the field have as many tokens. The rest are the other labels' prompts of the same strata,"
        " weighted alike; prompts without any are left out and counted. p is adjusted for all"
        " labels of the field and for the number of fields: if, within strata, labels are"
        " independent of all else in the prompt, the probability that any is called worse is at"
        " most 5 %. The difference of the means has an interval for each label by itself."
    ),
}


class AdversarialPage(Page):
    """Circuits under adversarial evaluation."""

    def title(self, report: Report) -> str:
        named = [f" of {r.model.name} on {r.task.name}" for r in report.records[:1]]
        return f"Adversarial evaluation of circuits{''.join(named)}"

    def tables(self, report: Report) -> list[TextTable]:
        """What a console shows; one population is in the first table."""
        records = report.records
        split = template_table(records) if records and len(halves(records[0])) > 1 else None
        return [overview_table(records, short=True), *([split] if split else [])] if records else []

    def sections(self, report: Report) -> list[Section]:
        """The page of a run."""
        records = report.records
        if not records:
            failed = [Section("Failed", (measures_table(report),))] if report.failures else []
            return framed(report, [], failed)
        split = template_table(records)
        soft = Text(" ".join(filter(None, (about(records[0]), template_text(records)))), "soft")
        overview = overview_table(records)
        looks = zip(records, cycle(PALETTE), strict=False)
        return framed(
            report,
            [*(Text(verdict(r), "verdict", f"{r.method.name}:") for r in records), soft],
            [Section(overview.title, (overview,))],
            figure=_all_circuits(records),
            folded=[
                *([Section(split.title, (split,))] if split else []),
                *(_circuit(record, colour) for record, colour in looks),
                *checks_section(records),
            ],
            reading=READING,
            values=[],
        )

    def draw(self, record: Record, ax: Axes | None = None) -> MatplotlibFigure | None:
        """The histogram of a record's pairs; without `ax` beside their exceedance."""
        if not record.has_table("histogram"):
            return None
        return draw_distribution(record) if ax is None else draw_histogram(record, ax)

    def draw_all(self, records: Sequence[Record]) -> MatplotlibFigure | None:
        """Histograms of divergences, one a record."""
        drawn = [record for record in records if record.has_table("histogram")]
        return draw_histograms(drawn) if drawn else None


def _all_circuits(records: Sequence[Record]) -> list[Block]:
    """The divergences of the first circuits, one panel each."""
    drawn = [record for record in records if record.has_table("histogram")][:MOST_PANELS]
    if not drawn:
        return []
    more = (
        f" The first {len(drawn)} of {len(records)} circuits." if len(drawn) < len(records) else ""
    )
    about = f"How many pairs are how far from the model.{more}"
    figure = partial(draw_histograms, drawn)
    return [Figure(figure, caption=about, name="Divergences of all pairs", about=about)]


def about(record: Record) -> str:
    """Which pairs these are, and what the numbers beside the values are."""
    args, n = record.task.args, record.n
    pairs = "prompts" if args["design"] == "clean prompts" else "pairs"
    if args["population"]:
        return (
            f"All {n:,} matched pairs of the split {args['split']}: percentiles and maximum are"
            " exact and need no interval."
        )
    sides = f"{args['n_clean']:,} × {args['n_corrupted']:,}: " if args["design"] == "grid" else ""
    chosen = f", those that agree in {args['same']}" if "same" in args else ""
    chosen += f", all prompts with {args['where']}" if "where" in args else ""
    design = str(args["design"])
    valid = BOUNDS["same" if "same" in args else design]
    return f"{n:,} {pairs} ({sides}{WORDS[design]}{chosen}) of the split {args['split']}; {valid}."


def verdict(record: Record) -> str:
    """How bad it gets and how sure that is: the 99th percentile with its bound, the worst pair, the
    mean; the same without the circuit and of random paths.
    """
    rows, empty = summary(record), summary(record, EMPTY)
    unit = "prompt" if record.task.args["design"] == "clean prompts" else "pair"
    mean, without, worst = rows["mean"], empty["mean"], nats(rows["max"]["value"])
    if "99%" in rows:
        text = (
            f"one {unit} in 100 is {nats(rows['99%']['value'])} nats or more from the model"
            f"{_sure_of(rows['99%'], record)}; the worst of {record.n:,} is {worst}"
        )
    else:
        text = (
            f"the worst of {counted(record.n, unit)} is {worst} nats from the model, and more are"
            " needed for a 99th percentile"
        )
    paths = summary(record, "control:random-paths").get("mean")
    beside = f", of random paths of its size {nats(paths['value'])}" if paths else ""
    worse = share(record.value("worse than empty"))
    return (
        f"{text}. The mean is {with_interval(mean)}; without any circuit it is"
        f" {with_interval(without)}{beside}. {_beside_nothing(mean, without)} On {worse} of the"
        f" {unit}s it is further from the model than no circuit."
    )


def _sure_of(row: Numbers, record: Record) -> str:
    """The upper bound of a percentile in words."""
    if record.task.args["population"]:
        return ""
    if math.isnan(row["bound"]):
        return " (too few pairs for an upper bound)"
    return f" (at most {nats(row['bound'])} with confidence 95 %)"


def _beside_nothing(mean: Numbers, without: Numbers) -> str:
    """Whether a circuit is closer to the model than no circuit, by the intervals of both means."""
    if mean["high"] < without["low"]:
        return "It is closer to the model than no circuit."
    if mean["low"] > without["high"]:
        return "It is further from the model than no circuit."
    if math.isnan(mean["high"]) or math.isnan(without["low"]):
        ends = mean["value"], without["value"]
        return f"It is {'closer' if ends[0] < ends[1] else 'not closer'}, without an interval."
    return "Whether that is better than no circuit cannot be told."


# Tables


def overview_table(records: Sequence[Record], *, short: bool = False) -> TextTable:
    """All circuits in one table, controls below them; `short` fits a console."""
    left_out = ("std", "min", "25%", "75%", *(("50%", "95%", "99.99%") if short else ()))
    names = [name for name in summary(records[0]) if name not in left_out]
    worse = "worse\nthan\nempty" if short else "worse than empty"
    circuits = [record.method.name for record in records]

    def numbers(record: Record, of: str = "result") -> list[str]:
        divergences = summary(record, of)
        return [nats(divergences[name]["value"]) for name in names]

    rows: list[Row] = []
    for label, record in zip(short_names(circuits) if short else circuits, records, strict=True):
        edges, live = (f"{record.method.args[name]:,}" for name in ("edges", "live edges"))
        part = share(record.value("worse than empty"))
        rows.append(Row((label, edges, live, *numbers(record), part), "method"))
    rows.append(Row(("empty circuit", "0", "0", *numbers(records[0], EMPTY), NOTHING), "control"))
    for of, called in RANDOM.items():
        drawn = {int(plain_number(_random(r)[of]["edges"])): r for r in records}
        for edges, record in sorted(drawn.items()):
            control = _random(record)[of]
            name = called if short else f"{called} ({control['pairs']:,} pairs)"
            cells = (name, f"{edges:,}", f"{control['live']:,}", *numbers(record, of), NOTHING)
            rows.append(Row(cells, "control"))
    columns = ("circuit", "edges", "live", *names, worse)
    return TextTable.of("All circuits, in nats", columns, rows)


def _random(record: Record) -> dict[str, dict[str, Any]]:
    """What was run of random circuits, by kind."""
    return {str(row["of"]): row for row in record.table("random circuits").rows()}


def short_names(names: Sequence[str]) -> list[str]:
    """Names without file endings, and without their middle where they are long.

    Different names stay different: those that are alike are shown from where they begin to differ,
    and numbered if that does not help.
    """
    short_ones = [_without_middle(FILE_ENDING.sub("", name)) for name in names]
    for alike in _same(short_ones, names):
        letters = enumerate(zip_longest(*(names[place] for place in alike)))
        begin = next(i for i, some in letters if len(set(some)) > 1)
        for place in alike:
            short_ones[place] = _without_middle(f"…{names[place][begin:]}")
    for alike in _same(short_ones, names):
        for number, place in enumerate(alike, 1):
            short_ones[place] = f"{short_ones[place]} ({number})"
    return short_ones


def _same(displayed: Sequence[str], names: Sequence[str]) -> list[list[int]]:
    """Places of different names that are shown alike."""
    places: dict[str, list[int]] = {}
    for place, text in enumerate(displayed):
        places.setdefault(text, []).append(place)
    return [alike for alike in places.values() if len({names[place] for place in alike}) > 1]


def _without_middle(text: str) -> str:
    # The end has the size, and of paths the name of the file.
    return text if len(text) <= SHORT else f"{text[: SHORT // 3]}…{text[SHORT // 3 + 1 - SHORT :]}"


def summary_table(record: Record) -> TextTable:
    """The distribution, as in tables 3 and 7; without z-scores where the spread is rounding."""
    population = bool(record.task.args["population"])
    others = [summary(record, of) for of in (EMPTY, *RANDOM)]
    counts = [record.n, *(_random(record)[of]["pairs"] for of in RANDOM)]
    own = summary(record)
    rows: list[tuple[str, ...]] = [
        ("", "circuit", "z", "upper bound", "empty circuit", *RANDOM.values()),
        ("count", f"{record.n:,}", "", "", *(f"{count:,}" for count in counts)),
    ]
    for name, row in own.items():
        z = f"{row['z']:.2f}" if math.isfinite(row["z"]) else ""
        beside = [nats(table[name]["value"]) for table in others]
        rows.append((name, with_interval(row), z, _bound(name, row, population), *beside))
    columns, *cells = (
        rows if own["std"]["value"] >= ROUNDING else [(*row[:2], *row[3:]) for row in rows]
    )
    return TextTable.of("Distribution, in nats", columns, cells)


def exceedance_table(record: Record) -> TextTable:
    """Shares of pairs above thresholds."""
    population, stored = bool(record.task.args["population"]), record.table("exceedance")
    empty = {row["above"]: row["value"] for row in stored.where(of=EMPTY).rows()}
    rows: list[tuple[str, ...]] = []
    for row in stored.where(of="result").rows():
        above, value, low, high, bound = (
            plain_number(row[key]) for key in ("above", "value", "low", "high", "bound")
        )
        has_interval = math.isfinite(low) and math.isfinite(high)
        interval = f" [{share(low)}, {share(high)}]" if has_interval else ""
        most = "exact" if population else NOTHING if math.isnan(bound) else share(bound)
        beside = share(plain_number(empty[row["above"]]))
        rows.append((f"{above:g} nats", f"{share(value)}{interval}", most, beside))
    columns = ("KL above", "share of pairs", "upper bound", "empty circuit")
    return TextTable.of("How often it is worse than", columns, rows)


# A circuit


def _circuit(record: Record, colour: str) -> Section:
    args = record.method.args
    sizes = f"{args['edges']:,} edges, {args['live edges']:,} of them live"
    if "n_edges" in record.model.args:
        sizes += f", of the {record.model.args['n_edges']:,} of the model"
    cautions = [text for text in record.warnings if text not in failed_checks(record)]
    caption = (
        "Left: the circuit's own range, with percentiles; where the grey outline leaves the panel,"
        " the empty circuit is further out. Right: all values, counts on a logarithmic scale."
    )
    blocks: list[Block] = [
        Text(sizes, "soft"),
        *(Text(caution, "warnings") for caution in cautions),
        Figure(
            partial(draw_distribution, record, colour),
            caption=caption,
            name=f"Distribution of divergences: {record.method.name}",
            about="Two histograms, linear and logarithmic; the tables below have its percentiles.",
        ),
        summary_table(record),
        exceedance_table(record),
        *worst_tables(record),
        Heading("Which prompts are worse"),
        Text(worse_labels_text(record)),
        *(Fold(group.name, (label_table(group),)) for group in groups_of(record)),
        *(block for heat in heat_maps_of(record) for block in _map(heat)),
    ]
    return Section(record.method.name, tuple(blocks), colour)


def _map(heat: HeatMap) -> tuple[Block, Block]:
    heading = Heading(f"By {' and '.join(heat.fields)}")
    if heat.is_flat:
        return heading, Text("No heat map: every cell is ≈ 0, which is rounding.")
    figure = Figure(
        partial(draw_heat_map, heat),
        caption=map_words(heat),
        name=f"Divergences by {' and '.join(heat.fields)}",
        about="A heat map for each percentile; the tables of labels have the largest values.",
    )
    return heading, figure


def worst_tables(record: Record) -> list[TextTable]:
    """The worst pairs, and those of different prompts where they are others."""
    stored = record.table("worst pairs")
    every, distinct = (stored.where(list=name).rows() for name in ("all", "distinct"))
    places = [[(row["clean"], row["corrupted"]) for row in rows] for rows in (every, distinct)]
    named = {"The worst pairs": every, "The worst pairs, each prompt once": distinct}
    if places[0] == places[1]:
        named = {"The worst pairs, no prompt of which comes twice": every}
    return [_cases(record, name, rows) for name, rows in named.items() if rows]


def _cases(record: Record, name: str, cases: Sequence[Mapping[str, Any]]) -> TextTable:
    paired = cases[0]["corrupted prompt"] is not None
    sides = ("clean", "corrupted") if paired else ("clean",)
    columns = [
        *(Column(f"{side} prompt", numeric=False) for side in sides),
        *(Column("KL"), Column("empty circuit")),
        *(Column("model", numeric=False), Column("circuit", numeric=False)),
    ]
    parts: dict[tuple[Any, Any], dict[str, tuple[int, int]]] = {}
    for row in record.table("parts").rows():
        span = (int(plain_number(row["begin"])), int(plain_number(row["end"])))
        parts.setdefault((row["side"], row["prompt"]), {})[str(row["part"])] = span
    tokens: dict[tuple[Any, ...], list[tuple[str, float]]] = {}
    for row in record.table("tokens").rows():
        token = (str(row["text"]), plain_number(row["logit"]))
        tokens.setdefault((row["clean"], row["corrupted"], row["of"]), []).append(token)
    token_line = Markup('<div class="token"><code>{}</code> <span class="soft">{:.2f}</span></div>')
    rows: list[Row] = []
    for case in cases:
        prompts = [
            marked(case[f"{side} prompt"], parts.get((side, case[side]), {})) for side in sides
        ]
        pair, both = (case["clean"], case["corrupted"]), ("model", "circuit")
        texts = [
            Markup("").join(token_line.format(*token) for token in tokens.get((*pair, of), []))
            for of in both
        ]
        cells = (*prompts, nats(case["value"]), nats(case["empty"]), *texts)
        rows.append(Row(cells, "" if case["agrees"] else "failure"))
    marks = "Parts of the prompts are marked; point at one for its name."
    caption = f"The most likely next tokens with their logits. {marks}"
    return TextTable(name, tuple(columns), tuple(rows), caption)


def marked(text: str, parts: Mapping[str, tuple[int, int]]) -> Markup:
    """A prompt with its parts marked; parts at one place share a mark, inner parts have none."""
    names: dict[tuple[int, int], list[str]] = {}
    for name, span in parts.items():
        names.setdefault(span, []).append(name)
    pieces: list[Markup] = []
    done = 0
    for (begin, end), titles in sorted(names.items(), key=lambda item: (item[0][0], -item[0][1])):
        if begin >= done and end > begin:
            mark = Markup('<mark title="{}">{}</mark>').format(", ".join(titles), text[begin:end])
            pieces += [escape(text[done:begin]), mark]
            done = end
    inner = Markup("").join([*pieces, escape(text[done:])])
    return Markup('<span class="prompt">{}</span>').format(inner)


# Numbers


def _bound(name: str, row: Numbers, population: bool) -> str:
    """The upper bound of a percentile in words; nothing for what has none."""
    if not name.endswith("%"):
        return ""
    if population:
        return "exact"
    return "too few pairs" if math.isnan(row["bound"]) else f"at most {nats(row['bound'])}"


SEARCH_KIND = "adversarial-search"
BOUND = "lower bound on the maximum"
SEARCH_READING = {
    "Lower bound": (
        "The divergence KL(M(x) || C(x, x~)) of a pair that exists, in nats: the largest one over"
        " all pairs is at least this. How probable such pairs are it does not say."
    ),
    "Random sampling": "The largest divergence of as many random pairs of the prompts.",
    "Climbs": (
        "From a pair, the change of one field that leads to the worst pair, until none does: then"
        " it is a local maximum."
    ),
}


class SearchPage(Page):
    """Searches for the worst inputs of circuits."""

    def title(self, report: Report) -> str:
        return "Search for the worst inputs of circuits"

    def tables(self, report: Report) -> list[TextTable]:
        """The climbs of every circuit, and what failed."""
        made: list[TextTable] = []
        for record, label in zip(report.records, labels(report.records), strict=True):
            head = "Climbs, in nats" if len(report.records) == 1 else f"{label}: climbs, in nats"
            rows = [
                (
                    f"{row['climb']}",
                    f"{row['divergence']:.6g}",
                    f"{row['at its start']:.6g}",
                    f"{row['changes']}",
                    "yes" if row["local maximum"] else "no",
                )
                for row in record.table("climbs").rows()
            ]
            columns = ("climb", "divergence", "at its start", "changes", "local maximum")
            made.append(TextTable.of(head, columns, rows))
        return [*made, *failures_table(report.failures, "circuit")]

    def sections(self, report: Report) -> list[Section]:
        """What was found; the worst pair and the climbs of every circuit; what was run."""
        named = list(zip(report.records, labels(report.records), strict=True))
        return framed(
            report,
            [Text(f"{label}: {best_text(record)[-1]}.", "verdict") for record, label in named],
            [
                *(
                    Section(f"The worst pair of {label}", tuple(map(Text, best_text(record)[:-1])))
                    for record, label in named
                ),
                *(Section(table.title, (table,)) for table in self.tables(report)),
            ],
            reading=SEARCH_READING,
            values=[],
        )


def best_text(record: Record) -> list[str]:
    """The worst pair, the changes that led to it, and the lower bound, a line each."""
    (climb,) = record.table("climbs").where(climb=1).rows()
    steps = record.table("steps").where(climb=1).rows()
    bound, random = record.measure(BOUND), record.measure(BOUND, "control:random")
    assert bound is not None
    other, n = (random.value, random.n) if random else (math.nan, 0)
    text = bound_text(bound.value, bound.n, other, n)
    return [
        f"clean      {climb['clean']}",
        f"corrupted  {climb['corrupted']}",
        *(f"  {step['kl']:.6g}  {step['change'] or 'start'}" for step in steps),
        text[0].upper() + text[1:],
    ]
