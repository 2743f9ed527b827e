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
    return KINDS.get(old["kind"], _as_it_is)(old, new)


def _as_it_is(_old: Old, new: New) -> New:
    return new


def _selection(old: Old) -> New:
    named = ("hash", "task", "version", "split", "counterfactual", "keep", "pairing", "seed")
    named += ("settings", "kept", "dropped", "alignment", "notes")
    counts = {key: value for key, value in old.items() if isinstance(value, int)}
    return {
        **{key: old[key] for key in named if key in old},
        "counts": {key: value for key, value in counts.items() if key not in named},
    }


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
        {**_measure(each["name"], _of(each["name"]), ()), **each} for each in old["measures"]
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


def _of(name: str) -> str:
    return "model" if name in ("accuracy", "chance") else "result"


def _points(
    fractions: Sequence[float], by: str, of: str, seed: int | None, line: Old
) -> Iterable[New]:
    names = {"asked": "asked", "kept": "kept", "metric": "metric", "f": "faithfulness"}
    for place, fraction in enumerate(fractions):
        yield {
            "ranking": by,
            "of": of,
            "seed": seed,
            "fraction": fraction,
            **{new: line[key][place] for new, key in names.items()},
            **{key: line[key][place] for key in ("low", "high")},
        }


# Accuracy


def _accuracy(old: Old, new: New) -> New:
    if "values" in new:
        new["values"]["unit"] = "example"
    new["measures"] = [
        {**each, "better": "" if each["name"].startswith("chance") else "up"}
        for each in old["measures"]
    ]
    return new


KINDS: dict[str, Callable[[Old, New], New]] = {
    "faithfulness": _faithfulness,
    "accuracy": _accuracy,
}
