"""Write or check the ground-truth models of src/mechassay/truth/data,
and what interventions say about them.

    python tools/truth_models.py [NAME ...]
        write every truth.json and sites.json, verified anew
    python tools/truth_models.py --check [NAME ...]
        exit with 1 if a folder would change
    python tools/truth_models.py --margins [NAME ...]
        the table of docs/truth.md, on fresh pairs
    python tools/truth_models.py --sites [NAME ...]
        the table of variables and known sites in docs/truth.md

A compiled circuit that does not hold (`mechassay.truth.verification`) is refused, and so is a
trained one for counterfactuals; for another ablation it is left out. Known sites of variables
(`mechassay.causal_models.true_sites`) that do not hold are refused. The check compares text files
as they are, tensors to 1e-6 (matrix products are not rounded the same everywhere), the edges
exactly, and effects not at all: the largest effect outside a compiled circuit is mostly rounding.
Weights of trained models are those that `mechassay truth train` wrote, rounded to float16, and are
not touched.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from mechassay.causal_models.true_sites import FILE as SITES_FILE
from mechassay.causal_models.true_sites import (
    KNOWN_SITES,
    VerifiedSites,
    verified_sites,
    verify_sites,
)
from mechassay.circuits.circuit import Circuit
from mechassay.models.model import load_model
from mechassay.models.sources import TRUTH_FOLDERS
from mechassay.prompts.pairs import Pairs
from mechassay.tasks import TRUTHS
from mechassay.truth import training
from mechassay.truth.compiled import BLUEPRINTS, Blueprint, compile_model
from mechassay.truth.ground_truth import Truth, load_truth, truth_folder
from mechassay.truth.tasks import CAUSAL
from mechassay.truth.verification import (
    ABLATIONS,
    FILE,
    Verification,
    verify,
    write_model,
    write_truth,
)

SPLIT, SEED, N_PAIRS = "test", 0, 500
FRESH, SIZES = (("validation", 11), ("train", 12)), (40, 100, 500)


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(line + "\n")


def verified(blueprint: Blueprint, folder: Path) -> dict[str, Verification]:
    """The circuit of the model in `folder`, by ablation; exits where a claim does not hold."""
    model = load_model(str(folder))
    pairs = blueprint.task.pairs(SPLIT, model, limit=N_PAIRS, seed=SEED)
    found: dict[str, Verification] = {}
    for ablation in ABLATIONS:
        done = verify(
            model,
            pairs,
            Circuit.from_names(model.graph, list(blueprint.claimed(ablation))),
            ablation,
        )
        say(f"{blueprint.task.name:30} {told(ablation, done)}")
        if not done.holds:
            sys.exit(
                f"The claim does not hold: {done.claimed.names()} claimed, the effects of"
                f" {done.recovered.names()} stand above the gap."
            )
        found[ablation] = done
    return found


def write(blueprint: Blueprint, folder: Path) -> None:
    """Write one compiled model's truth.json; the model itself is compiled where it is used."""
    with tempfile.TemporaryDirectory() as model:
        write_model(compile_model(blueprint), blueprint.task.vocabulary, Path(model))
        found = verified(blueprint, Path(model))
    write_truth(folder, blueprint.task.name, found, split=SPLIT, seed=SEED)


def write_trained(name: str, folder: Path) -> None:
    """Write the files of a trained model with the circuits that hold for it;
    exits if that of counterfactuals does not.
    """
    truth, causal = load_truth(name), CAUSAL.make(name)
    found = training.verified(truth.model, causal, N_PAIRS)
    for ablation, done in found.items():
        say(f"{name:30} {told(ablation, done)}{'' if done.holds else ': does not hold, left out'}")
    holding = {ablation: done for ablation, done in found.items() if done.holds}
    if "counterfactual" not in holding:
        sys.exit(f"The circuit of {name} does not hold.")
    for file in truth_folder(name).iterdir():
        if file != folder / file.name:
            shutil.copyfile(file, folder / file.name)
    record = json.loads((folder / FILE).read_text("utf-8"))
    write_truth(
        folder, record["task"], holding, split=SPLIT, seed=SEED, training=record["training"]
    )
    places = verify_sites(truth)
    say(f"{name:30} sites of {', '.join(places.shares)}: {'hold' if places.holds else 'do not'}")
    if not places.holds:
        sys.exit(f"The known sites of {name} do not hold: {places.columns()}")
    places.save(folder / SITES_FILE)


def told(ablation: str, done: Verification) -> str:
    """The verdict on one circuit in a line."""
    clear = (
        f"margin {done.margin:.0f}, joint {done.joint_margin:.0f}, least share"
        f" {done.least_share:.2f}"
    )
    return f"{ablation:15} {len(done.claimed)} edges of {done.claimed.graph.n_edges}, {clear}"


def margins(names: Sequence[str]) -> None:
    """Print how clear each circuit is: what truth.json says,
    and its margins on fresh pairs of two splits.
    """
    fresh = " | ".join(f"{n} fresh pairs" for n in SIZES)
    say(
        "| model | ablation | edges | inside | outside | margin | joint | least share | rarest"
        f" edge | {fresh} |"
    )
    say("|---" * (9 + len(SIZES)) + "|")
    for name in names:
        truth = load_truth(name)
        means = truth.pairs()
        for ablation, each in truth.verified.items():
            cells = [
                " / ".join(
                    fresh_margin(truth, ablation, n, split, seed, means) for split, seed in FRESH
                )
                for n in SIZES
            ]
            effects = (
                f"{each.smallest_inside:.2f} | {each.largest_outside:.2g} | {each.margin:,.0f} |"
                f" {each.joint_margin:,.0f}"
            )
            rarest = (
                f"{each.least_share:.2f} |"
                f" `{each.circuit.names()[each.shares.index(each.least_share)]}`"
            )
            say(
                f"| `{name}` | {ablation} | {len(each.circuit)} | {effects} | {rarest} |"
                f" {' | '.join(cells)} |"
            )


def tell_sites(names: Sequence[str]) -> None:
    """Print where the variables of trained models are, and what sites.json says about it."""
    say("| model | variable | known sites | pairs | least share | best other site |")
    say("|---" * 6 + "|")
    for name in names:
        known = verified_sites(name)
        for variable, shares in known.shares.items():
            sites = ", ".join(f"`{site}`" for site in shares)
            other, share = known.elsewhere[variable]
            least = f"{known.pairs[variable]} | {min(shares.values()):.3f}"
            say(f"| `{name}` | `{variable}` | {sites} | {least} | `{other}` {share:.2f} |")


def fresh_margin(truth: Truth, ablation: str, n: int, split: str, seed: int, means: Pairs) -> str:
    """The margin of a circuit on fresh pairs, and whether it does not hold there."""
    pairs = truth.task.pairs(split, truth.model, limit=n, seed=seed)
    done = verify(truth.model, pairs, truth.circuits[ablation], ablation, data=means)
    return f"{done.margin:,.0f}{'' if done.holds else ' (does not hold)'}"


def differences(old: Path, new: Path) -> list[str]:
    """The files of two folders that are not the same."""
    names = sorted({path.name for folder in (old, new) for path in folder.iterdir()})
    return [
        name
        for name in names
        if not ((old / name).is_file() and (new / name).is_file() and _same(old / name, new / name))
    ]


def _same(old: Path, new: Path) -> bool:
    if old.suffix == ".safetensors":
        a, b = load_file(old), load_file(new)
        return a.keys() == b.keys() and all(
            torch.allclose(a[name], b[name], atol=1e-6) for name in a
        )
    if old.name == SITES_FILE:
        a, b = VerifiedSites.load(old), VerifiedSites.load(new)
        return [(name, *of) for name, of in a.shares.items()] == [
            (name, *of) for name, of in b.shares.items()
        ]
    if old.name == "truth.json":
        return _without_effects(old) == _without_effects(new)
    return old.read_bytes() == new.read_bytes()


def _without_effects(path: Path) -> dict[str, Any]:
    record = json.loads(path.read_text("utf-8"))
    return {
        **record,
        "ablations": {ablation: row["edges"] for ablation, row in record["ablations"].items()},
    }


def main() -> int:
    """Write, check or judge all folders."""
    named = [word for word in sys.argv[1:] if not word.startswith("--")]
    if "--margins" in sys.argv:
        margins(named or TRUTHS.names())
        return 0
    if "--sites" in sys.argv:
        tell_sites(named or list(KNOWN_SITES))
        return 0
    changed = 0
    makers: dict[str, Callable[[Path], None]] = {
        name: partial(write, make()) for name, make in BLUEPRINTS.items()
    }
    makers |= {
        name: partial(write_trained, name) for name in TRUTHS.names() if name not in BLUEPRINTS
    }
    makers = {name: make for name, make in makers.items() if not named or name in named}
    for name, make in makers.items():
        if "--check" not in sys.argv:
            make(TRUTH_FOLDERS / name)
            continue
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder))
            for file in differences(TRUTH_FOLDERS / name, Path(folder)):
                say(f"{name}/{file} would change")
                changed += 1
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main())
