"""Write the compiled ground-truth models of src/mechassay/truth/data: weights, tokenizer, and the circuit verified by intervention.

    python tools/truth_models.py            write the folders
    python tools/truth_models.py --check    exit with 1 if a folder would change

A model whose claimed circuit does not hold for every ablation is refused (`mechassay.truth.verify.MARGIN`). The check
compares text files as they are, tensors to 1e-6 (matrix products are not rounded the same everywhere), the edges
exactly, and effects not at all: the largest effect outside a circuit is mostly rounding. Trained models are written by
`mechassay truth train`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from mechassay.circuits.scores import Circuit
from mechassay.models.model import load_model
from mechassay.truth.compiled import BLUEPRINTS, Blueprint, compile_model
from mechassay.truth.folders import write_model, write_truth
from mechassay.truth.models import DATA
from mechassay.truth.verify import ABLATIONS, Verification, verify

SPLIT, SEED, N_PAIRS = "test", 0, 500


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(line + "\n")


def verified(blueprint: Blueprint, folder: Path) -> dict[str, Verification]:
    """The circuit of the model in `folder`, by ablation; exits where a claim does not hold."""
    model = load_model(str(folder))
    pairs = blueprint.task.pairs(SPLIT, model, limit=N_PAIRS, seed=SEED)
    found: dict[str, Verification] = {}
    for ablation in ABLATIONS:
        done = verify(model, pairs, Circuit.from_names(model.graph, list(blueprint.claimed(ablation))), ablation)
        say(f"{blueprint.task.name:22} {ablation:15} {len(done.claimed)} edges of {model.graph.n_edges}, margin {done.margin:.0f}")
        if not done.holds:
            sys.exit(f"The claim does not hold: {done.claimed.names()} claimed, {done.found.names()} found.")
        found[ablation] = done
    return found


def write(blueprint: Blueprint, folder: Path) -> None:
    """Write one model's folder."""
    write_model(compile_model(blueprint), blueprint.task.vocabulary, folder)
    write_truth(folder, blueprint.task.name, verified(blueprint, folder), split=SPLIT, seed=SEED)


def differences(old: Path, new: Path) -> list[str]:
    """The files of two folders that are not the same."""
    names = sorted({path.name for folder in (old, new) for path in folder.iterdir()})
    return [name for name in names if not ((old / name).is_file() and (new / name).is_file() and _same(old / name, new / name))]


def _same(old: Path, new: Path) -> bool:
    if old.suffix == ".safetensors":
        a, b = load_file(old), load_file(new)
        return a.keys() == b.keys() and all(torch.allclose(a[name], b[name], atol=1e-6) for name in a)
    if old.name == "truth.json":
        return _without_effects(old) == _without_effects(new)
    return old.read_bytes() == new.read_bytes()


def _without_effects(path: Path) -> dict[str, Any]:
    record = json.loads(path.read_text("utf-8"))
    return {**record, "ablations": {ablation: row["edges"] for ablation, row in record["ablations"].items()}}


def main() -> int:
    """Write or check all folders."""
    changed = 0
    for name, make in BLUEPRINTS.items():
        if "--check" not in sys.argv:
            write(make(), DATA / name)
            continue
        with tempfile.TemporaryDirectory() as folder:
            write(make(), Path(folder))
            for file in differences(DATA / name, Path(folder)):
                say(f"{name}/{file} would change")
                changed += 1
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(main())
