"""Records of FORMAT 1 as those of FORMAT 2: plain values in, plain values out.

FORMAT 1 had the specs, per-example values, `curves` and `controls` in fields of their own, the last
two without types. Of its three kinds, "faithfulness", "accuracy" and "adversarial", everything that
a reader was shown is read; numbers are taken over as they are. What is new in FORMAT 2 is added: of
what a measure is, its title, and which way is better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Old = Mapping[str, Any]
New = dict[str, Any]

SPECS = ("model", "task", "method", "metric")
KEPT = ("kind", "realised", "warnings", "provenance")
INTERVAL = ("value", "low", "high")
ABILITY = ("accuracy", "chance")
TITLES = {
    "cpr": ("CPR", "up"),
    "cmd": ("CMD", "down"),
    "cmd_corrected": ("CMD without bias", "down"),
    "log_cpr": ("log CPR", "up"),
    "log_cmd": ("log CMD", "down"),
    "auroc": ("AUROC", "up"),
    "auprc": ("AUPRC", "up"),
    "r_precision": ("R-precision", "up"),
    "accuracy": ("accuracy of the model", "up"),
}


def upgraded(old: Old) -> New:
    """A record of FORMAT 1 in FORMAT 2, as plain values.

    Raises:
        KeyError, TypeError: it lacks what a record of its kind has.
    """
    data = {role: _selection(chosen) for role, chosen in old.get("data", {}).items()}
    new: New = {
        "format": 2,
        **{key: old[key] for key in KEPT if key in old},
        "specs": {role: {**old[role], "args": dict(old[role].get("args", {}))} for role in SPECS},
        "cell": {role: old[role]["name"] for role in ("model", "task", "method")},
        "measures": old["measures"],
        "data": {role: chosen for role, chosen in data.items() if role != "values"},
    }
    if old["example_ids"]:
        new["values"] = {
            "unit": "pair",
            "ids": old["example_ids"],
            "groups": old["groups"],
            "columns": old["per_example"],
        }
    return KINDS[old["kind"]](old, new) if old["kind"] in KINDS else new


def _selection(old: Old) -> New:
    named = ("hash", "task", "version", "split", "counterfactual", "keep", "pairing", "seed")
    named += ("settings", "kept", "dropped", "alignment", "notes")
    counts: New = {}
    for key, value in old.items():
        if key not in named:
            counts |= value if isinstance(value, Mapping) else {key: value}
    return {**{key: old[key] for key in named if key in old}, "counts": counts}


def _table(name: str, keys: Sequence[str], rows: Iterable[New]) -> New:
    found = list(rows)
    columns = {key: [row[key] for row in found] for key in (found[0] if found else ())}
    return {"name": name, "keys": list(keys), "columns": columns}


def _measure(name: str, of: str, numbers: Sequence[Any], **more: Any) -> New:
    title, better = TITLES.get(name, ("", ""))
    return {
        "name": name,
        "of": of,
        "title": title,
        "better": better,
        **dict(zip(INTERVAL, numbers, strict=False)),
        **more,
    }


# Faithfulness


def _faithfulness(old: Old, new: New) -> New:
    controls, n = old["controls"], len(old["example_ids"])
    task = old["task"].get("args", {})
    new["cell"] |= {
        "task": task.get("cell_task", old["task"]["name"]),
        "method": task.get("cell", old["method"]["name"]),
    }
    for name in ("cell", "cell_task"):
        new["specs"]["task"]["args"].pop(name, None)
    measures = [
        {**_measure(m["name"], "model" if m["name"] in ABILITY else "result", ()), **m}
        for m in old["measures"]
    ]
    for kind in ("empty", "full"):
        if kind in controls:
            value = controls[kind]["metric"]
            measures.append(_measure("objective", f"control:{kind}", [value], n=n))
    if "denominator" in controls:
        low, high, *level = controls["denominator"]
        ends = [controls[kind]["metric"] for kind in ("full", "empty") if kind in controls]
        value = ends[0] - ends[1] if len(ends) == 2 else None
        about = {"title": "full less empty circuit", "n": n}
        about |= {"level": level[0]} if level else {}
        found = _measure("denominator", "control:full", [value, low, high])
        measures.append({**found, **about})
    curves, seeds = old["curves"], []
    points = [
        point
        for by in ("value", "magnitude")
        if by in curves
        for point in _points(curves["fractions"], by, "result", None, curves[by])
    ]
    for kind in ("random", "random-paths"):
        control = controls.get(kind, {})
        for name in ("cpr", "cmd"):
            if name in control:
                numbers = [control[name], *control.get(f"{name}_interval", [])]
                measures.append(_measure(name, f"control:{kind}", numbers, n=n))
            if f"{name}_difference" in control:
                less = control[f"{name}_difference"]
                measures.append(_measure(name, f"difference:{kind}", less, n=n))
        if "auroc" in control:
            numbers = [control["auroc"][key] for key in ("mean", "low", "high")]
            measures.append(_measure("auroc", f"control:{kind}", numbers))
        for seed, line in control.get("seeds", {}).items():
            of, number = f"control:{kind}", int(seed)
            points += _points(curves["fractions"], "value", of, number, line)
            seeds.append({"of": of, "seed": number, "cpr": line["cpr"], "cmd": line["cmd"]})
    tables = [
        _table("curve", ("ranking", "of", "seed", "fraction"), points),
        _table("random areas", ("of", "seed"), seeds),
    ]
    return {**new, "measures": measures, "tables": tables}


def _points(
    fractions: Sequence[float], by: str, of: str, seed: int | None, line: Old
) -> Iterable[New]:
    names = {"asked": "asked", "kept": "kept", "metric": "metric", "f": "faithfulness"}
    names |= {"low": "low", "high": "high"}
    for place, fraction in enumerate(fractions):
        key = {"ranking": by, "of": of, "seed": seed, "fraction": fraction}
        yield {**key, **{new: line[name][place] for new, name in names.items()}}


# Accuracy


def _accuracy(old: Old, new: New) -> New:
    if "values" in new:
        new["values"]["unit"] = "example"
    new["measures"] = [
        {**each, "better": "" if each["name"].startswith("chance") else "up"}
        for each in old["measures"]
    ]
    return new


# Adversarial evaluation

PARTS = {
    "corrupted": "control:empty",
    "random": "control:random",
    "random_paths": "control:random-paths",
}


def _adversarial(old: Old, new: New) -> New:
    curves, controls, values = old["curves"], old["controls"], old["data"].get("values")
    if values:
        new["values"] = {"unit": "pair", "file": values["file"], "sha256": values["hash"]}
    if "split" in curves:
        new["specs"]["task"]["args"]["templates"] = curves["split"]["templates"]
    summaries = {"result": curves, **{of: controls[key] for key, of in PARTS.items()}}
    shares = {of: part for of, part in summaries.items() if "exceedance" in part}
    tables = [
        _table(
            "summary",
            ("of", "statistic"),
            (
                {"of": of, "statistic": row["name"], **{k: row[k] for k in row if k != "name"}}
                for of, part in summaries.items()
                for row in part["summary"]
            ),
        ),
        _table(
            "exceedance",
            ("of", "above"),
            ({"of": of, **row} for of, part in shares.items() for row in part["exceedance"]),
        ),
        _table("random circuits", ("of",), _random(controls)),
        _table("histogram", ("range", "low"), _bins(curves)),
        _table("worst pairs", ("list", "rank"), _cases(curves)),
        _table("tokens", ("clean", "corrupted", "of", "rank"), _tokens(curves)),
        _table("parts", ("side", "prompt", "part"), _parts(curves)),
        _table("templates", ("pairs", "of", "statistic"), _halves(curves)),
        *_labels(curves["groups"]),
        *_maps(curves["heat_maps"]),
    ]
    better = [
        {"better": "down", "unit": "" if _is_share(each["name"]) else "nats", **each}
        for each in old["measures"]
    ]
    checks = list(_checks(old))
    return {**new, "measures": better, "tables": tables, "checks": checks}


def _is_share(name: str) -> bool:
    return name.removeprefix("bound ").startswith(("above", "worse"))


def _random(controls: Old) -> Iterable[New]:
    for key in ("random", "random_paths"):
        names = ("edges", "live", "pairs", "seed")
        yield {"of": PARTS[key], **{name: controls[key][name] for name in names}}


def _bins(curves: Old) -> Iterable[New]:
    for part, name in (("own", "histogram"), ("all", "histogram_all")):
        found = curves[name]
        for place, count in enumerate(found["circuit"]):
            yield {
                "range": part,
                "low": found["edges"][place],
                "high": found["edges"][place + 1],
                "circuit": count,
                "empty": found["corrupted"][place],
                "random-paths": found["random_paths"][place],
            }


def _lists(curves: Old) -> Iterable[tuple[str, int, Old]]:
    for part, name in (("all", "worst"), ("distinct", "worst_distinct")):
        for rank, case in enumerate(curves[name]):
            yield part, rank, case


def _cases(curves: Old) -> Iterable[New]:
    for part, rank, case in _lists(curves):
        names = ("clean", "corrupted", "value", "again", "empty", "agrees")
        yield {
            "list": part,
            "rank": rank,
            **{name: case[name] for name in names},
            "clean prompt": case["clean_prompt"]["text"],
            "corrupted prompt": case.get("corrupted_prompt", {}).get("text"),
        }


def _tokens(curves: Old) -> Iterable[New]:
    pairs = {(case["clean"], case["corrupted"]): case for *_, case in _lists(curves)}
    for (clean, corrupted), case in pairs.items():
        for of in ("model", "circuit"):
            for rank, token in enumerate(case[of]):
                yield {"clean": clean, "corrupted": corrupted, "of": of, "rank": rank, **token}


def _parts(curves: Old) -> Iterable[New]:
    prompts = {
        (side, case[side]): case[f"{side}_prompt"]
        for *_, case in _lists(curves)
        for side in ("clean", "corrupted")
        if f"{side}_prompt" in case
    }
    for (side, number), prompt in prompts.items():
        for part, (begin, end) in prompt["parts"].items():
            yield {"side": side, "prompt": number, "part": part, "begin": begin, "end": end}


def _halves(curves: Old) -> Iterable[New]:
    for half in curves.get("split", {}).get("halves", []):
        found = {"result": half["circuit"], "control:empty": half["empty"]}
        found["left"] = {"mean": half["left"]}
        for of, statistics in found.items():
            for name, numbers in statistics.items():
                key = {"pairs": half["pairs"], "of": of, "statistic": name, "n": half["n"]}
                yield {**key, **dict(zip(INTERVAL, numbers, strict=True))}


def _labels(groups: Sequence[Old]) -> Iterable[New]:
    columns = [key for key, value in groups[0].items() if isinstance(value, list)] if groups else []
    yield _table(
        "labels",
        ("field", "label"),
        (
            {
                "field": group["name"],
                "label": label,
                **{key: group[key][place] for key in columns if key != "labels"},
            }
            for group in groups
            for place, label in enumerate(group["labels"])
        ),
    )
    names = ("side", "strata", "strata used")
    yield _table(
        "fields",
        ("field",),
        ({"field": group["name"], **{name: group[name] for name in names}} for group in groups),
    )


def _maps(maps: Sequence[Old]) -> Iterable[New]:
    names = ("99.9%", "99.99%", "max")
    cells: list[New] = []
    left_out: list[New] = []
    for found in maps:
        fields = dict(zip(("rows", "columns"), found["fields"], strict=True))
        for i, row in enumerate(found["labels"][0]):
            for j, column in enumerate(found["labels"][1]):
                numbers = {name: found[name][i][j] for name in names}
                cells.append({**fields, "row": row, "column": column, **numbers})
        counts = zip(found["fields"], found["left_out"], found["largest_left_out"], strict=True)
        for field, count, largest in counts:
            left_out.append({**fields, "field": field, "count": count, "largest": largest})
    yield _table("heat maps", ("rows", "columns", "row", "column"), cells)
    yield _table("labels left out of heat maps", ("rows", "columns", "field"), left_out)
    empty = maps[0]["empty"] if maps else {}
    rows = ({"statistic": name, "value": value} for name, value in empty.items())
    yield _table("empty circuit in heat maps", ("statistic",), rows)


def _checks(old: Old) -> Iterable[New]:
    controls, failures = old["controls"], old["controls"]["failures"]

    def said(*words: str) -> str:
        return next((text for text in failures if any(word in text for word in words)), "")

    design, name = old["task"]["args"]["design"], old["method"]["name"]

    def row(name: str, must_be: str, largest: Any, n: int, n_wrong: int, says: str) -> New:
        counts = {"largest": largest, "n": n, "n_wrong": n_wrong}
        return {"name": name, "must_be": must_be, "unit": "nats", **counts, "says": says}

    of_empty = "its values in the run"
    if design != "clean prompts":
        of_empty = "the model on the corrupted prompt"
    must = {"full": "0 everywhere", "empty": of_empty}
    for check in controls["checks"]:
        kind = check["name"]
        numbers = check["largest"], check["n"], check["n_wrong"]
        yield row(f"{kind} circuit", must[kind], *numbers, said(f"The {kind} circuit"))
    gaps = [
        abs(case["value"] - case["again"])
        for case in old["curves"]["worst"]
        if None not in (case["value"], case["again"])
    ]
    alone = {"worst": max(gaps, default=0.0), "drawn": controls["drawn"]["largest"]}
    for kind, largest in alone.items():
        pairs = f"{'random' if kind == 'drawn' else kind} pairs of {name}, each run alone"
        n, n_wrong = controls[kind]["n"], controls[kind]["n_wrong"]
        says = said("run again have another") if n_wrong else ""
        yield row(pairs, "the stored value", largest, n, n_wrong, says)
    same = said("Without any circuit the divergence")
    largest = {row["name"]: row["value"] for row in controls["corrupted"]["summary"]}["max"]
    n = max(measure["n"] for measure in old["measures"])
    both = "model on clean and corrupted prompts"
    yield row(both, "another distribution", largest, n, n if same else 0, same)


KINDS: dict[str, Callable[[Old, New], New]] = {
    "faithfulness": _faithfulness,
    "accuracy": _accuracy,
    "adversarial": _adversarial,
}
