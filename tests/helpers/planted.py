"""A compiled model of IOI with two signals, each carried to the last token by a head of its own.

a0.h2 and a0.h3 find the earlier mention of a name, and write its position and its token; a1.h0
brings the position to the end, a1.h1 the token; a2.h2 attends to the first two names, less to the
one at that position, and less to the one of that token, by one nat each. Both together make odds of
e^2, and opposed ones cancel, so that with logits of 10 times the attention

    logit difference = 0 + 5 tanh(1) position + 5 tanh(1) token

A GPT-2 in which two heads alone write.

A store of values that a planted dictionary made: sparse sums of random unit rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mechassay.causal_models.ioi import FLIPS
from mechassay.features.sae import SAE
from mechassay.interventions.site import Site
from mechassay.models.graph import Graph
from mechassay.models.identity import ModelIdentity
from mechassay.models.model import Model, make_model
from mechassay.prompts.pairs import Example, Prompt
from mechassay.saes import ActivationStore, StoreSettings
from mechassay.tasks.task import Task
from mechassay.testing.tiny import Subject, build, subject
from mechassay.truth.compiled import CONTEXT, GAP, Blueprint, Reads, Space, compile_model
from mechassay.truth.tasks import FILLERS, LENGTH, NAMES, CompiledIOI
from mechassay.truth.verification import word_tokenizer

POSITION, TOKEN = "heads.1.0@all", "heads.1.1@all"
HALF = 5 * math.tanh(1)
PLACES = (1, 2, 5)
"""Where the three names stand."""


def planted_ioi() -> Model:
    task, n = CompiledIOI(), len(NAMES)
    sizes = {"dup_token": n, "dup_place": 2, "token_out": n, "place_out": 2, "out": n}
    space = Space({"token": len(task.vocabulary), **sizes})
    names, places = space.read("token", 1, 1 + n), space.read("position", 1, 3)
    end = task.vocabulary.index("to")
    last = space.read("token", end, end + 1)
    asked = 2 * GAP * np.concatenate((names, -space.read("position")))
    there = np.concatenate((names, space.read("position")))
    bias = ((0.0,) * n) + (GAP,)
    third = space.read("position", PLACES[2], PLACES[2] + 1)
    blueprint = Blueprint(
        task,
        space,
        {
            (0, 2): Reads(asked, there, places, "dup_place", bias),
            (0, 3): Reads(asked, there, names, "dup_token", bias),
            (1, 0): Reads(
                q=GAP * last,
                k=np.ones((1, 2)) @ space.read("dup_place"),
                v=space.read("dup_place"),
                writes="place_out",
            ),
            (1, 1): Reads(
                q=GAP * last,
                k=np.ones((1, n)) @ space.read("dup_token"),
                v=space.read("dup_token"),
                writes="token_out",
            ),
            (2, 2): Reads(
                q=np.concatenate(
                    (
                        GAP * np.ones((n, 1)) @ last - space.read("token_out"),
                        -space.read("place_out"),
                        -2 * GAP * last,
                    )
                ),
                k=np.concatenate((names, places, third)),
                v=names,
                writes="out",
            ),
        },
        edges=(),
        seed=3,
    )
    hf = compile_model(blueprint)
    return make_model(hf, tokenizer=word_tokenizer(task.vocabulary, CONTEXT))


def planted_examples(n: int, seed: int = 0) -> list[Example]:
    """Prompts like "then Ann Bob so . Ann , so . to", with the three flips of IOI."""
    rng = np.random.default_rng(seed)
    found: list[Example] = []
    for number in range(n):
        fill = [FILLERS[i] for i in rng.integers(len(FILLERS), size=LENGTH - 2)]
        a, b = (NAMES[i] for i in rng.choice(len(NAMES), size=2, replace=False))
        subject, other = (a, b) if number % 2 else (b, a)
        flips = {
            "s1_io_flip_counterfactual": (b, a, subject),
            "s2_io_flip_counterfactual": (a, b, other),
            "s1_ioi_flip_s2_ioi_flip_counterfactual": (b, a, other),
        }
        found.append(
            Example(
                f"planted-{number}",
                prompt(fill, a, b, subject),
                {kind: prompt(fill, *names) for kind, names in flips.items()},
            )
        )
    return found


def prompt(fill: list[str], a: str, b: str, c: str) -> Prompt:
    words = ["then", *fill, "to"]
    for place, name in zip(PLACES, (a, b, c), strict=True):
        words[place] = name
    begins = np.cumsum([0, *(len(word) + 1 for word in words)]).tolist()
    other = b if c == a else a
    spans = {
        name: (begins[place], begins[place] + len(words[place]))
        for name, place in zip(("name_A", "name_B", "name_C"), PLACES, strict=True)
    }
    spans["subject"] = spans["name_A" if c == a else "name_B"]
    spans["indirect_object"] = spans["name_B" if c == a else "name_A"]
    return Prompt(" ".join(words), (f" {other}",), spans=spans)


@dataclass(frozen=True)
class PlantedIOI(Task):
    """The prompts of a model with two built-in signals, under the name of IOI."""

    name: ClassVar[str] = "ioi"
    counterfactuals: ClassVar[tuple[str, ...]] = FLIPS
    default_counterfactual: ClassVar[str] = FLIPS[0]
    sizes: ClassVar[dict[str, int]] = {"train": 12, "validation": 12, "test": 12}

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        yield from planted_examples(12, list(self.sizes).index(split))


D, N, ACTIVE = 16, 24, 2


class Planted(ActivationStore):
    """A store of values that are held in memory."""

    def __init__(self, held: Tensor) -> None:
        site = Site(1, "all")
        none = ModelIdentity("", "", "", "", "")
        super().__init__(Path("planted"), "planted", none, site, "none", "", StoreSettings(), ())
        object.__setattr__(self, "held", held)

    def values(self, split: str, limit: int | None = None) -> Tensor:
        return vars(self)["held"]


def planted(rows: int = 4000) -> tuple[Any, Tensor]:
    # Not the seed of any training: it would begin at the answer.
    drawn = torch.Generator().manual_seed(99)
    directions = F.normalize(torch.randn(N, D, generator=drawn), dim=1)
    which = torch.rand(rows, N, generator=drawn).topk(ACTIVE, dim=1).indices
    sizes = 1 + torch.rand(rows, ACTIVE, generator=drawn)
    values = (directions[which] * sizes[:, :, None]).sum(1) * 5.0 + 3.0
    return Planted(values), directions


def explained(sae: SAE, values: Tensor) -> float:
    """The share of variance that an SAE explains."""
    left = (values - sae.reconstruct(values)).square().sum()
    return 1 - float(left / (values - values.mean(0)).square().sum())


ALIVE = ("input", "a0.h1", "a2.h2")
"""The writers of `two_heads` that write."""


def two_heads(n_pairs: int = 4) -> Subject:
    """GPT-2 in which two heads write and nothing else does: few edges can matter."""
    hf: Any = build("gpt2")
    with torch.no_grad():
        for layer, block in enumerate(hf.transformer.h):
            out = block.attn.c_proj.weight.view(4, 8, 32)
            for head in range(4):
                out[head] *= 3.0 if f"a{layer}.h{head}" in ALIVE else 0.0
            block.mlp.c_proj.weight.zero_()
    return replace(subject("gpt2", n_pairs=n_pairs), model=make_model(hf))


def can_matter(graph: Graph) -> Tensor:
    """Edges from a writer that writes, into the logits or a head that writes."""
    alive = [graph.writer(name) for name in ALIVE]
    rows = torch.zeros(graph.n_writers, dtype=torch.bool)
    columns = torch.zeros(graph.n_readers, dtype=torch.bool)
    rows[alive] = True
    owners = (*alive, graph.n_writers)
    columns[[v for v in range(graph.n_readers) if int(graph.reader_owner[v]) in owners]] = True
    return rows[:, None] & columns & graph.legal
