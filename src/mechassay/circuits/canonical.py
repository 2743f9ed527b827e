"""Circuits of the literature, built from the rules they were published as.

    name          found by                     in            heads  edges  counted as in ACDC
    ioi           Wang et al. 2023             GPT-2 small      26    963               1,041
    greater-than  Hanna et al. 2023            GPT-2 small       9    235                 262
    docstring     Heimersheim and Janiak 2023  attn-only-4l      6     24                  37

A circuit is written as groups of nodes and rules "these nodes are read by those, through these
slots". A rule stands for every pair of which the graph has an edge. The edges are those that ACDC
(Conmy et al. 2023) takes as the truth, evaluated by Uit de Bos and Garriga-Alonso (2024), but for
the edges within a head, and positions, which belong to no writer here. Deviations from the papers:

- ioi: the paper knocks out heads at positions and leaves MLPs as they are. Here all twelve MLPs are
  in, edges hold at all positions, and every head reads every MLP before it and is read by every MLP
  at or after its layer. Keys and values of S-inhibition heads, queries of name movers and all three
  of induction heads do not read `input`.
- greater-than: the paper leaves the queries of its middle heads clean. Here these read every MLP
  before the head, MLPs before layer 9 read one another, and of `input` and all heads only the three
  of layer 0 go into them. Head 6.9 is in; older versions of the public code lack it.
- docstring: queries and keys of head 0.5 are not in. Heads 0.2 and 0.4, essential to the authors,
  are left out of the published edges.

All three compare prompts of one form and may lack what depends on position alone: they are meant
for counterfactual (resample) ablation. docs/canonical.md has more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch

from mechassay.circuits.circuit import Circuit
from mechassay.errors import GraphMismatch, UnknownName
from mechassay.models.graph import SLOTS, Graph
from mechassay.utils.display import OneLine
from mechassay.utils.registry import Registry


class ReadingRule(NamedTuple):
    """Who is read by whom: groups or single nodes; `slots` of the heads that read, else ""."""

    writers: tuple[str, ...]
    readers: tuple[str, ...]
    slots: str = ""


@dataclass(frozen=True, eq=False, repr=False)
class Canonical(OneLine):
    """A circuit of the literature, on the graph of the model it was found in.

    Attributes:
        name: its name in `CANONICAL`.
        paper: where it comes from.
        model: the model it was found in, and `graph`, that model's.
        task: the task, by its name in `tasks.TASKS`, on whose prompts it was found.
        groups: names of the nodes of each class.
        rules: the edges.
    """

    name: str
    paper: str
    model: str
    graph: Graph
    task: str
    groups: Mapping[str, tuple[str, ...]]
    rules: tuple[ReadingRule, ...]

    @cached_property
    def circuit(self) -> Circuit:
        """Its edges."""
        mask = torch.zeros_like(self.graph.legal)
        for rule in self.rules:
            writers = [self.graph.writer(node) for node in self._nodes(rule.writers)]
            readers = [
                self.graph.reader(f"{node}<{slot}>" if slot else node)
                for node in self._nodes(rule.readers)
                for slot in rule.slots or ("",)
            ]
            mask[torch.tensor(writers)[:, None], torch.tensor(readers)[None, :]] = True
        return Circuit(self.graph, mask & self.graph.legal)

    def _nodes(self, names: tuple[str, ...]) -> Iterator[str]:
        return (node for name in names for node in self.groups.get(name, (name,)))

    @property
    def n_edges(self) -> int:
        return len(self.circuit)

    @cached_property
    def n_live(self) -> int:
        """Edges on some path from `input` to `logits` within the circuit."""
        return len(self.circuit.pruned())

    @property
    def n_unreachable(self) -> int:
        """Edges on no such path; running the circuit without them is the same."""
        return self.n_edges - self.n_live

    @property
    def n_acdc(self) -> int:
        """Edges as ACDC counts them: one more for each query, key or value that reads anything."""
        read = self.circuit.edges.any(dim=0)
        slots = (self.graph.slots(layer) for layer in range(self.graph.n_layers))
        return self.n_edges + sum(int(read[readers].sum()) for readers in slots)


def canonical(name: str, graph: Graph) -> Canonical:
    """A circuit of the literature, by name.

    Args:
        name: "ioi", "greater-than" or "docstring".
        graph: the graph of the model to use it on.

    Raises:
        UnknownName: no circuit has this name; the message has the nearest one.
        GraphMismatch: the graph is not that of the model the circuit was found in. Edges of the
            same names in a model of another shape would say nothing, even where they exist.
    """
    known: Canonical = CANONICAL.load(name)
    if graph != known.graph:
        missing = next((edge for edge in known.circuit.names() if not _has(graph, edge)), None)
        lacks = "" if missing is None else f"; it lacks, for example, {missing}"
        raise GraphMismatch(
            f"The {name} circuit is one of {known.model}, {_shape(known.graph)}; this graph has"
            f" {_shape(graph)}{lacks}."
        )
    # A copy, whose circuit is its own: tensors can be changed in place.
    return replace(known)


def _has(graph: Graph, edge: str) -> bool:
    try:
        graph.index(edge)
    except UnknownName:
        return False
    return True


def _shape(graph: Graph) -> str:
    mlps = ("and parallel MLPs" if graph.parallel else "and MLPs") if graph.mlp else "without MLPs"
    return f"{graph.n_layers} layers of {graph.n_heads} heads {mlps}"


_QKV = "".join(SLOTS)
_MLPS = tuple(f"m{layer}" for layer in range(12))
_MOVERS = ("name mover", "backup name mover", "negative name mover")
_BEFORE_MOVERS = ("previous token", "duplicate token", "induction", "S-inhibition")

IOI = Canonical(
    name="ioi",
    paper="Wang et al. 2023, Interpretability in the Wild, arXiv:2211.00593",
    model="GPT-2 small",
    graph=Graph(12, 12),
    task="ioi",
    groups={
        "previous token": ("a2.h2", "a4.h11"),
        "duplicate token": ("a0.h1", "a0.h10", "a3.h0"),
        "induction": ("a5.h5", "a5.h8", "a5.h9", "a6.h9"),
        "S-inhibition": ("a7.h3", "a7.h9", "a8.h6", "a8.h10"),
        "name mover": ("a9.h6", "a9.h9", "a10.h0"),
        "backup name mover": (
            *("a9.h0", "a9.h7", "a10.h1", "a10.h2", "a10.h6", "a10.h10", "a11.h2", "a11.h9"),
        ),
        "negative name mover": ("a10.h7", "a11.h10"),
        "MLP": _MLPS,
    },
    rules=(
        ReadingRule(("input",), ("previous token", "duplicate token"), _QKV),
        ReadingRule(("previous token",), ("induction",), "kv"),
        ReadingRule(("duplicate token", "induction"), ("S-inhibition",), "kv"),
        ReadingRule(("input",), ("S-inhibition",), "q"),
        ReadingRule(("S-inhibition",), _MOVERS, "q"),
        ReadingRule(("input",), _MOVERS, "kv"),
        ReadingRule(_MOVERS, ("logits",)),
        ReadingRule(("MLP",), (*_BEFORE_MOVERS, *_MOVERS), _QKV),
        ReadingRule(("input", *_BEFORE_MOVERS, *_MOVERS, "MLP"), ("MLP",)),
        ReadingRule(("input", "MLP"), ("logits",)),
    ),
)

_BEFORE_LAYER_9 = ("early MLP", "middle MLP", "m8")

GREATER_THAN = Canonical(
    name="greater-than",
    paper="Hanna et al. 2023, How does GPT-2 compute greater-than?, arXiv:2305.00586",
    model="GPT-2 small",
    graph=Graph(12, 12),
    task="greater-than",
    groups={
        "first head": ("a0.h1", "a0.h3", "a0.h5"),
        "early MLP": _MLPS[:4],
        "middle head": ("a5.h5", "a6.h1", "a6.h9", "a7.h10", "a8.h11", "a9.h1"),
        "middle MLP": _MLPS[4:8],
        "late MLP": _MLPS[8:],
    },
    rules=(
        ReadingRule(("input",), ("first head",), _QKV),
        ReadingRule(("input", "a0.h1", "early MLP"), ("early MLP",)),
        ReadingRule(("first head", "early MLP"), ("middle head",), _QKV),
        ReadingRule(("middle head", "late MLP"), ("late MLP",)),
        ReadingRule(("middle head", "late MLP"), ("logits",)),
        # Clean queries of the middle heads.
        ReadingRule(_BEFORE_LAYER_9, _BEFORE_LAYER_9),
        ReadingRule(_BEFORE_LAYER_9, ("middle head",), "q"),
    ),
)

DOCSTRING = Canonical(
    name="docstring",
    paper=(
        "Heimersheim and Janiak 2023, A circuit for Python docstrings in a 4-layer attention-only"
        " transformer, Alignment Forum"
    ),
    model="attn-only-4l",
    graph=Graph(4, 8, mlp=False),
    task="docstring",
    groups={
        # Two by their attention; 0.5 in effect transforms embeddings, 1.2 keeps movers off the
        # docstring's own names.
        "duplicate token": ("a0.h5", "a1.h2"),
        # A previous-token head at some positions and an induction head at others.
        "previous token and induction": ("a1.h4",),
        "previous token": ("a2.h0",),
        "argument mover": ("a3.h0", "a3.h6"),
    },
    rules=(
        ReadingRule(("input",), ("a0.h5",), "v"),
        ReadingRule(("input", "a0.h5"), ("a1.h4",), "v"),
        ReadingRule(("input", "a0.h5"), ("a1.h2", "a2.h0"), "qk"),
        ReadingRule(("a1.h4",), ("a2.h0",), "v"),
        ReadingRule(("a1.h4",), ("argument mover",), "q"),
        ReadingRule(("a1.h2", "a2.h0"), ("argument mover",), "k"),
        ReadingRule(("input", "a0.h5"), ("argument mover",), "v"),
        ReadingRule(("argument mover",), ("logits",)),
    ),
)

CANONICAL = Registry(
    "canonical circuit",
    {
        "docstring": f"{__name__}:DOCSTRING",
        "greater-than": f"{__name__}:GREATER_THAN",
        "ioi": f"{__name__}:IOI",
    },
)
