"""A compiled model with two behaviours that share no edge: IOI, and copying the only fruit.

IOI is as in truth-ioi: a0.h3, a1.h0, a2.h2. Prompts that end in "=" have no name and one fruit;
there a0.h0 attends to fruits and copies theirs to the logits. So what an intervention on the
circuit of one behaviour leaves of the other is known: all of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from mechassay.truth.compiled import CONTEXT, GAP, Blueprint, Reads, Space, compile_model, ioi
from mechassay.truth.tasks import FILLERS, LENGTH, NAMES, CompiledIOI
from mechassay.truth.verification import write_model

FRUITS = ("fig", "plum", "pear", "lime")
IOI_EDGES = (*ioi().edges, *ioi().constant_edges)
N = {"train": 24, "validation": 24, "test": 40}


@dataclass(frozen=True)
class TwoBehaviours(CompiledIOI):
    """The vocabulary of both; its prompts are those of IOI.

    With the unused word there are 19: so many that the tokens by which a model proves itself on
    loading end in "=", behind a fruit. All logits of prompts without a question are rounding.
    """

    words: ClassVar[tuple[str, ...]] = (*NAMES, *FRUITS)
    others: ClassVar[tuple[str, ...]] = (*FILLERS, "then", "to", "unused", "=")


def two_behaviours(folder: Path) -> tuple[Path, Path, Path]:
    """The folder of the model, and the files of the two tasks' pairs."""
    task, n, m = TwoBehaviours(), len(NAMES), len(FRUITS)
    sizes = {"duplicate": n, "inhibited": n, "out names": n, "out fruits": m}
    space = Space({"token": len(task.vocabulary), **sizes})
    space.at["out"] = slice(space.at["out names"].start, space.at["out fruits"].stop)
    names, fruits = space.read("token", 1, 1 + n), space.read("token", 1 + n, 1 + n + m)
    to, equals = (
        space.read("token", place, place + 1) for place in map(task.vocabulary.index, ("to", "="))
    )
    position, any_of = space.read("position"), np.ones((1, n))
    heads = {
        (0, 0): Reads(q=GAP * equals, k=np.ones((1, m)) @ fruits, v=fruits, writes="out fruits"),
        (0, 3): Reads(
            q=2 * GAP * np.concatenate((names, -position)),
            k=np.concatenate((names, position)),
            v=names,
            writes="duplicate",
            bias=(0.0,) * n + (GAP,),
        ),
        (1, 0): Reads(
            q=GAP * to,
            k=any_of @ space.read("duplicate"),
            v=space.read("duplicate"),
            writes="inhibited",
        ),
        (2, 2): Reads(
            q=GAP * (any_of.T @ to - space.read("inhibited")), k=names, v=names, writes="out names"
        ),
    }
    model = folder / "two-behaviours"
    write_model(
        compile_model(Blueprint(task, space, heads, edges=ioi().edges, seed=3)),
        task.vocabulary,
        model,
    )
    assert CONTEXT >= LENGTH
    rows = {"names": list(_ioi_rows()), "fruits": list(_fruit_rows(np.random.default_rng(0)))}
    files = [folder / f"{name}.jsonl" for name in rows]
    for file, own in zip(files, rows.values(), strict=True):
        file.write_text("".join(json.dumps(row) + "\n" for row in own))
    return model, files[0], files[1]


def _ioi_rows() -> Iterator[dict[str, str]]:
    for split, n in N.items():
        for example in CompiledIOI().examples(split, limit=n):
            (other,) = example.counterfactuals.values()
            yield {
                "clean": example.prompt.text,
                "counterfactual": other.text,
                "answer": example.prompt.answers[0],
                "foil": (example.foils or other.answers)[0],
                "split": split,
            }


def _fruit_rows(rng: np.random.Generator) -> Iterator[dict[str, str]]:
    seen = set[str]()
    for split, n in N.items():
        made = 0
        while made < n:
            text = ["then", *rng.choice(FILLERS, size=LENGTH - 2).tolist(), "="]
            place = int(rng.integers(1, LENGTH - 1))
            one, two = (FRUITS[x] for x in rng.choice(len(FRUITS), size=2, replace=False).tolist())
            clean, other = (
                " ".join([*text[:place], fruit, *text[place + 1 :]]) for fruit in (one, two)
            )
            if {clean, other} & seen:
                continue
            seen |= {clean, other}
            made += 1
            said = {"answer": f" {one}", "foil": f" {two}", "split": split}
            yield {"clean": clean, "counterfactual": other, **said}
