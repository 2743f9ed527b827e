"""Adversarial evaluation as one self-contained HTML file, made from records alone.

From top to bottom: controls that fail, if any; what was found, a sentence a circuit; the controls;
all circuits in one table; then for each circuit its histogram (figures 1 to 6 of Uit de Bos and
Garriga-Alonso 2024, with the empty circuit beside it), the table of its distribution (their tables
3 and 7, with intervals and bounds), its worst pairs (tables 4 to 6), the fields whose labels are
worse (tested), heat maps of two fields (figures 7 to 10); how to read it; what was run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from mechassay.records import Record
from mechassay.report.adversarial_figures import by_name, draw_distribution, n_pairs
from mechassay.report.adversarial_labels import group_grid, worse_labels_text
from mechassay.report.adversarial_split import split_grid, split_text
from mechassay.report.figures import PALETTE, svg
from mechassay.report.heat_maps import draw_heat_map, flat_map, map_words
from mechassay.report.nats import ROUNDING, nats, plain_number, with_interval
from mechassay.report.tables import NOTHING, Grid
from mechassay.report.text import arguments, share, shortened
from mechassay.stats.two_way import LEAST

SHORT = 14
"""Letters of a circuit's name that a console of 80 has room for."""
FILE_ENDING = re.compile(r"\.(safetensors|json|pt)(?=[@:]|$)")
RANDOM = {"random_paths": "random paths", "random": "random edges"}
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


def adversarial_page(records: Sequence[Record]) -> str:
    """The page of a run.

    Args:
        records: of kind "adversarial", of one run.
    """
    environment = Environment(
        loader=PackageLoader("mechassay.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    first, by_template = records[0], split_grid(records)
    return environment.get_template("adversarial.html").render(
        title=f"Adversarial evaluation of circuits of {first.model.name} on {first.task.name}",
        failures=[(record.method.name, text) for record in records for text in broken(record)],
        verdicts=[(record.method.name, verdict(record)) for record in records],
        about=" ".join(filter(None, (about(first), split_text(records)))),
        tables=[
            controls_grid(records),
            overview_grid(records),
            *([by_template] if by_template else []),
        ],
        circuits=[
            _circuit(record, PALETTE[number % len(PALETTE)])
            for number, record in enumerate(records)
        ],
        reading=list(READING.items()),
        facts=_facts(records),
    )


def broken(record: Record) -> list[str]:
    """What is wrong with a record's controls, in words; nothing if all have their known answer."""
    return list(record.controls["failures"])


def about(record: Record) -> str:
    """Which pairs these are, and what the numbers beside the values are."""
    args, n = record.task.args, n_pairs(record)
    pairs = "prompts" if args["design"] == "clean prompts" else "pairs"
    if args["population"]:
        return (
            f"All {n:,} matched pairs of the split {args['split']}: percentiles and maximum are"
            " exact and need no interval."
        )
    sides = f"{args['n_clean']:,} × {args['n_corrupted']:,}: " if args["design"] == "grid" else ""
    chosen = f", those that agree in {args['same']}" if "same" in args else ""
    chosen += f", all prompts with {args['where']}" if "where" in args else ""
    valid = BOUNDS["same" if "same" in args else args["design"]]
    return (
        f"{n:,} {pairs} ({sides}{WORDS[args['design']]}{chosen}) of the split {args['split']};"
        f" {valid}."
    )


def verdict(record: Record) -> str:
    """One sentence: the mean, the 99th percentile with its bound,
    the worst pair, and the empty circuit beside them.
    """
    rows, empty = (
        by_name(record.curves["summary"]),
        by_name(record.controls["corrupted"]["summary"]),
    )
    n, population = n_pairs(record), record.task.args["population"]
    mean, worst = rows["mean"]["value"], rows["max"]
    text = f"{nats(mean)} nats from the model on average"
    if "99%" in rows:
        high = rows["99%"]
        known = (
            "too few pairs for an upper bound"
            if math.isnan(high["bound"])
            else f"at most {nats(high['bound'])} with confidence 95 %"
        )
        said = "" if population else f" ({known})"
        text += f", 99th percentile {nats(high['value'])}{said}"
    text += f"; the worst of {n:,} is {nats(worst['value'])}"
    text += (
        f", {worst['z']:.1f} standard deviations above the mean"
        if _has_z(rows) and math.isfinite(worst["z"])
        else ""
    )
    text += f". Without any circuit the mean is {nats(empty['mean']['value'])}"
    return (
        f"{text}, and on {share(_measure(record, 'worse than empty'))} of the pairs the circuit is"
        " the further one from the model."
    )


# Tables


def controls_grid(records: Sequence[Record]) -> Grid:
    """The controls that have a known answer."""
    first = records[0]
    answers = {
        "full": ("full circuit", "0 everywhere"),
        "empty": ("empty circuit", "the model on the corrupted prompt"),
    }
    if first.task.args["design"] == "clean prompts":
        answers["empty"] = ("empty circuit", "its values in the run")
    rows = [
        (
            *answers[check["name"]],
            f"{plain_number(check['largest']):.1e}",
            f"{check['n']:,}",
            "yes" if check["passed"] else "NO",
        )
        for check in first.controls["checks"]
    ]
    for record in records:
        found = record.controls["worst"]
        gap = max(
            (
                abs(plain_number(case["value"]) - plain_number(case["again"]))
                for case in record.curves["worst"]
            ),
            default=0.0,
        )
        passed = "NO" if found["n_wrong"] else "yes"
        rows.append(
            (
                f"worst pairs of {record.method.name}, each run alone",
                "the stored value",
                f"{gap:.1e}",
                f"{found['n']:,}",
                passed,
            )
        )
        drawn = record.controls["drawn"]
        passed, gap = "NO" if drawn["n_wrong"] else "yes", plain_number(drawn["largest"])
        rows.append(
            (
                f"random pairs of {record.method.name}, each run alone",
                "the stored value",
                f"{gap:.1e}",
                f"{drawn['n']:,}",
                passed,
            )
        )
    return Grid(
        "Controls",
        ("control", "must be", "largest difference, nats", "pairs", "passed"),
        tuple(rows),
        words=True,
    )


def overview_grid(records: Sequence[Record], *, short: bool = False) -> Grid:
    """All circuits in one table, the empty and the random ones below them;
    `short` fits a console.
    """
    left_out = ("std", "min", "25%", "75%", *(("50%", "95%", "99.99%") if short else ()))
    names = [row["name"] for row in records[0].curves["summary"] if row["name"] not in left_out]
    columns = (
        "circuit",
        "edges",
        "live",
        *names,
        "worse\nthan\nempty" if short else "worse than empty",
    )
    circuits = [record.method.name for record in records]
    rows = [
        (
            shown,
            f"{record.method.args['edges']:,}",
            f"{record.method.args['live edges']:,}",
            *(
                nats(row["value"])
                for name, row in by_name(record.curves["summary"]).items()
                if name in names
            ),
            share(_measure(record, "worse than empty")),
        )
        for shown, record in zip(short_names(circuits) if short else circuits, records, strict=True)
    ]
    empty = by_name(records[0].controls["corrupted"]["summary"])
    rows.append(
        ("empty circuit", "0", "0", *(nats(empty[name]["value"]) for name in names), NOTHING)
    )
    for kind, called in RANDOM.items():
        drawn = {record.controls[kind]["edges"]: record.controls[kind] for record in records}
        for edges, control in sorted(drawn.items()):
            found = by_name(control["summary"])
            part = called if short else f"{called} ({control['pairs']:,} pairs)"
            rows.append(
                (
                    part,
                    f"{edges:,}",
                    f"{control['live']:,}",
                    *(nats(found[name]["value"]) for name in names),
                    NOTHING,
                )
            )
    return Grid("All circuits, in nats", columns, tuple(rows))


def short_names(names: Sequence[str]) -> list[str]:
    """Names without file endings and without their middle where they are long;
    different names stay different.

    Those that are alike then are shown from where they begin to differ, and numbered if that does
    not help.
    """
    # The end has the size, and of paths the name of the file.
    shown = [shortened(FILE_ENDING.sub("", name), SHORT, SHORT // 3) for name in names]
    for alike in _same(shown, names):
        begin = next(
            i
            for i, letters in enumerate(zip_longest(*(names[place] for place in alike)))
            if len(set(letters)) > 1
        )
        for place in alike:
            shown[place] = shortened(f"…{names[place][begin:]}", SHORT, SHORT // 3)
    for alike in _same(shown, names):
        for number, place in enumerate(alike, 1):
            shown[place] = f"{shown[place]} ({number})"
    return shown


def _same(shown: Sequence[str], names: Sequence[str]) -> list[list[int]]:
    """Places of different names that are shown alike."""
    places: dict[str, list[int]] = {}
    for place, text in enumerate(shown):
        places.setdefault(text, []).append(place)
    return [alike for alike in places.values() if len({names[place] for place in alike}) > 1]


def summary_grid(record: Record) -> Grid:
    """The distribution, as in tables 3 and 7; without z-scores where the spread is rounding."""
    population = bool(record.task.args["population"])
    empty = by_name(record.controls["corrupted"]["summary"])
    drawn = {called: record.controls[kind] for kind, called in RANDOM.items()}
    tables = [by_name(control["summary"]) for control in drawn.values()]
    own = by_name(record.curves["summary"])
    rows: list[tuple[str, ...]] = [
        ("", "circuit", "z", "upper bound", "empty circuit", *drawn),
        (
            "count",
            f"{n_pairs(record):,}",
            "",
            "",
            f"{n_pairs(record):,}",
            *(f"{control['pairs']:,}" for control in drawn.values()),
        ),
    ]
    for name, row in own.items():
        z = f"{row['z']:.2f}" if math.isfinite(row["z"]) else ""
        others = [nats(table[name]["value"]) for table in (empty, *tables)]
        rows.append((name, with_interval(row), z, _bound(name, row, population), *others))
    columns, *cells = rows if _has_z(own) else [(*row[:2], *row[3:]) for row in rows]
    return Grid("Distribution, in nats", columns, tuple(cells))


def exceedance_grid(record: Record) -> Grid:
    """Shares of pairs above thresholds."""
    population = bool(record.task.args["population"])
    empty = {row["above"]: row for row in record.controls["corrupted"]["exceedance"]}
    rows: list[tuple[str, ...]] = []
    for row in record.curves["exceedance"]:
        low, high, bound = (plain_number(row[key]) for key in ("low", "high", "bound"))
        interval = (
            f" [{share(low)}, {share(high)}]" if math.isfinite(low) and math.isfinite(high) else ""
        )
        most = "exact" if population else NOTHING if math.isnan(bound) else share(bound)
        rows.append(
            (
                f"{row['above']:g} nats",
                f"{share(row['value'])}{interval}",
                most,
                share(empty[row["above"]]["value"]),
            )
        )
    return Grid(
        "How often it is worse than",
        ("KL above", "share of pairs", "upper bound", "empty circuit"),
        tuple(rows),
    )


# The page


def _circuit(record: Record, colour: str) -> dict[str, Any]:
    groups = sorted(
        record.curves["groups"], key=lambda group: (not any(group["worse"]), min(group["p"]))
    )
    return {
        "name": record.method.name,
        "cautions": [text for text in record.warnings if text not in broken(record)],
        "about": (
            f"{record.method.args['edges']:,} edges, {record.method.args['live edges']:,} of them"
            " live"
            + (
                f", of the {record.model.args['n_edges']:,} of the model"
                if "n_edges" in record.model.args
                else ""
            )
        ),
        "colour": colour,
        "figure": Markup(svg(draw_distribution(record, colour))),
        "tables": [summary_grid(record), exceedance_grid(record)],
        "worst": _worst(record),
        "worse": worse_labels_text(record),
        "groups": [(group_grid(group), any(group["worse"])) for group in groups],
        "maps": [
            (
                " and ".join(found["fields"]),
                None if flat_map(found) else Markup(svg(draw_heat_map(found))),
                map_words(found),
            )
            for found in record.curves["heat_maps"]
        ],
    }


def _worst(record: Record) -> list[tuple[str, list[dict[str, Any]]]]:
    """The worst pairs, and those of different prompts where they are others."""
    lists = {
        "The worst pairs": record.curves["worst"],
        "The worst pairs, each prompt once": record.curves["worst_distinct"],
    }
    if record.curves["worst"] == record.curves["worst_distinct"]:
        lists = {"The worst pairs, no prompt of which comes twice": record.curves["worst"]}
    return [(title, [_case(case) for case in cases]) for title, cases in lists.items() if cases]


def _case(case: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "clean": marked(case["clean_prompt"]),
        "corrupted": marked(case["corrupted_prompt"]) if "corrupted_prompt" in case else None,
        "value": nats(case["value"]),
        "empty": nats(case["empty"]),
        "model": [(token["text"], f"{token['logit']:.2f}") for token in case["model"]],
        "circuit": [(token["text"], f"{token['logit']:.2f}") for token in case["circuit"]],
        "agrees": case["agrees"],
    }


def marked(prompt: Mapping[str, Any]) -> Markup:
    """A prompt with its parts marked; parts at the same place share a mark,
    parts inside others have none of their own.
    """
    names: dict[tuple[int, int], list[str]] = {}
    for name, (begin, end) in prompt["parts"].items():
        names.setdefault((begin, end), []).append(name)
    text, pieces, done = prompt["text"], [], 0
    for (begin, end), titles in sorted(names.items(), key=lambda item: (item[0][0], -item[0][1])):
        if begin >= done and end > begin:
            title = ", ".join(titles)
            pieces += [
                escape(text[done:begin]),
                Markup('<mark title="{}">{}</mark>').format(title, text[begin:end]),
            ]
            done = end
    return Markup("").join([*pieces, escape(text[done:])])


def _facts(records: Sequence[Record]) -> list[tuple[str, list[str]]]:
    columns = [_facts_of(record) for record in records]
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows: list[tuple[str, list[str]]] = []
    for name in names:
        cells = [column.get(name, "") for column in columns]
        # What all circuits share is said once.
        rows.append((name, cells[:1] if len(set(cells)) == 1 else cells))
    return rows


def _facts_of(record: Record) -> dict[str, str]:
    state, data = record.provenance, record.data
    prompts = data.get("prompts", {})
    dropped = "; ".join(
        f"{count:,} {reason}" for reason, count in prompts.get("dropped", {}).items()
    )
    commit = (
        f"{state.commit or 'not a checkout'}{', with uncommitted changes' if state.dirty else ''}"
    )
    return {
        "circuit": record.method.name,
        "circuit's origin": arguments(record.method),
        "model": record.model.name,
        "family": str(record.model.args.get("family", "")),
        "task": f"{record.task.name} (version {record.task.version})",
        **{
            key.replace("_", " "): f"{value:,}" if isinstance(value, int) else str(value)
            for key, value in record.task.args.items()
        },
        "tokens a prompt": str(prompts.get("tokens", "")),
        "prompts dropped": dropped or "none",
        "values": (
            f"{data['values']['file']}, SHA-256 {data['values']['hash'][:16]}"
            if "values" in data
            else ""
        ),
        **{
            key.replace("_", " "): f"{value:,.4g}"
            for key, value in record.realised.items()
            if math.isfinite(value)
        },
        "seed": str(state.seed),
        "prompts' hash": state.data_hash[:16],
        "device": f"{state.device}, {state.dtype}, {state.threads} threads",
        "machine": state.machine,
        "commit": commit,
        "packages": ", ".join(
            [
                f"Python {state.python}",
                *(f"{name} {version}" for name, version in state.packages.items()),
            ]
        ),
        "created": state.created,
    }


# Numbers


def _has_z(rows: Mapping[str, Mapping[str, float]]) -> bool:
    """Whether differences in standard deviations mean something:
    the deviation is more than rounding.
    """
    return rows["std"]["value"] >= ROUNDING


def _bound(name: str, row: Mapping[str, float], population: bool) -> str:
    """The upper bound of a percentile in words; nothing for what has none."""
    if not name.endswith("%"):
        return ""
    if population:
        return "exact"
    return "too few pairs" if math.isnan(row["bound"]) else f"at most {nats(row['bound'])}"


def _measure(record: Record, name: str) -> float:
    return next((each.value for each in record.measures if each.name == name), math.nan)
