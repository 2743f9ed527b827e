"""The computation graph of a decoder: writers and readers of the residual stream.

A writer puts a vector into the residual stream: the token embedding (`input`), an attention head
(`a3.h7`), an MLP (`m3`). A reader takes the stream through a norm: a head's query, key or value
(`a3.h7<q>`), an MLP (`m3`), the unembedding (`logits`). An edge `u->v` says that reader v sees
writer u. Both are numbered in the order of computation, so what a reader sees is a prefix of the
writers: the topology is one integer per reader, and there is never a Python object per edge.

    writers  input 0 · a{l}.h{h} 1 + l(H+1) + h · m{l} 1 + l(H+1) + H
    readers  a{l}.h{h}<q|k|v> l(3H+1) + {0,1,2}H + h · m{l} l(3H+1) + 3H · logits last

Under grouped-query attention every query head has its own key and value reader. Names and
counts are those of MIB (Mueller et al. 2025): GPT-2 small has 32,491 edges.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mechassay.errors import BadUsage, UnknownName

SLOTS = ("q", "k", "v")
Spelling = Literal["mib", "transformer-lens", "dotted"]

_SPELLED: Mapping[Spelling, tuple[str, str, str, str, str, str]] = {
    "mib": ("input", "a{}.h{}", "m{}", "a{}.h{}<{}>", "m{}", "logits"),
    "transformer-lens": (
        *("hook_embed", "blocks.{}.attn.hook_result.{}", "blocks.{}.hook_mlp_out"),
        *("blocks.{0}.hook_{2}_input.{1}", "blocks.{}.hook_mlp_in", "blocks.{}.hook_resid_post"),
    ),
    "dotted": ("input", "A{}.{}", "MLP {}", "A{}.{}<{}>", "MLP {}", "logits"),
}
"""Names of the input, a head and an MLP as writers, of a head's slot, an MLP and the logits."""


class EdgeIndex(NamedTuple):
    """Where an edge stands in a [writers, readers] tensor; indexes it directly."""

    writer: int
    reader: int


_NODE_FORMS = (
    re.compile(r"a(?P<layer>\d+)\.h(?P<head>\d+)(?:<(?P<slot>[qkv])>)?", re.IGNORECASE),
    re.compile(r"[aL]?(?P<layer>\d+)[.H](?P<head>\d+)(?:<(?P<slot>[qkv])>)?", re.IGNORECASE),
    re.compile(r"A(?P<layer>\d+)\.(?P<head>\d+)\.(?P<slot>[QKV])"),
    re.compile(r"blocks\.(?P<layer>\d+)\.attn\.hook_(?:result|z)(?:\.|\[)(?P<head>\d+)\]?"),
    re.compile(r"blocks\.(?P<layer>\d+)\.hook_(?P<slot>[qkv])_input(?:\.|\[)(?P<head>\d+)\]?"),
    re.compile(r"(?:m|mlp)\s*(?P<layer>\d+)", re.IGNORECASE),
    re.compile(r"blocks\.(?P<layer>\d+)\.hook_mlp_(?:in|out)"),
)
_INPUT_FORMS = frozenset({"input", "embed", "hook_embed", "blocks.0.hook_resid_pre", "Resid Start"})
_LOGITS_FORM = re.compile(r"logits|Resid End|blocks\.(\d+)\.hook_resid_post")


@dataclass(frozen=True)
class Graph:
    """Writers, readers and the edges between them. Topology only: it holds no scores.

    Attributes:
        n_layers: decoder layers.
        n_heads: query heads a layer.
        parallel: a layer's MLP does not see that layer's heads (GPT-NeoX, GPT-J).
        mlp: False for attention-only models.
    """

    n_layers: int
    n_heads: int
    parallel: bool = False
    mlp: bool = True

    def __post_init__(self) -> None:
        if self.n_layers < 1 or self.n_heads < 1:
            raise BadUsage(
                f"A graph needs at least one layer and one head; got n_layers={self.n_layers},"
                f" n_heads={self.n_heads}."
            )

    @property
    def writers_per_layer(self) -> int:
        return self.n_heads + self.mlp

    @property
    def readers_per_layer(self) -> int:
        return 3 * self.n_heads + self.mlp

    @property
    def n_writers(self) -> int:
        return 1 + self.n_layers * self.writers_per_layer

    @property
    def n_readers(self) -> int:
        return self.n_layers * self.readers_per_layer + 1

    @property
    def n_edges(self) -> int:
        return int(self.visible.sum())

    @property
    def fingerprint(self) -> str:
        """Twelve hex digits that differ between graphs, stored with scores."""
        text = f"{self.n_layers},{self.n_heads},{int(self.parallel)},{int(self.mlp)}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    # Index arithmetic: the only place where it is written.

    def head(self, layer: int, head: int) -> int:
        """Writer index of an attention head."""
        return 1 + layer * self.writers_per_layer + head

    def heads(self, layer: int) -> slice:
        """Writer indices of a layer's heads."""
        return slice(self.head(layer, 0), self.head(layer, self.n_heads))

    def mlp_writer(self, layer: int) -> int:
        """Writer index of a layer's MLP."""
        return self.head(layer, self.n_heads)

    def slot(self, layer: int, slot: int, head: int) -> int:
        """Reader index of a head's query (slot 0), key (1) or value (2)."""
        return layer * self.readers_per_layer + slot * self.n_heads + head

    def slots(self, layer: int) -> slice:
        """Reader indices of a layer's queries, keys and values, in that order."""
        return slice(self.slot(layer, 0, 0), self.slot(layer, 3, 0))

    def mlp_reader(self, layer: int) -> int:
        """Reader index of a layer's MLP."""
        return self.slot(layer, 3, 0)

    @property
    def logits(self) -> int:
        """Reader index of the unembedding."""
        return self.n_readers - 1

    def seen_by_heads(self, layer: int) -> int:
        """How many writers a layer's heads see (always a prefix of the writers)."""
        return self.head(layer, 0)

    def seen_by_mlp(self, layer: int) -> int:
        """How many writers a layer's MLP sees."""
        return self.head(layer, 0 if self.parallel else self.n_heads)

    # Kept for good, so not as tensors of inference mode, which can never be differentiated.

    @cached_property
    @torch.inference_mode(False)
    def visible(self) -> Int[Tensor, "readers"]:
        """How many writers each reader sees."""
        layers = torch.arange(self.n_layers)
        before = 1 + layers * self.writers_per_layer
        columns = [before[:, None].expand(-1, 3 * self.n_heads)]
        if self.mlp:
            columns.append(before[:, None] + (0 if self.parallel else self.n_heads))
        return torch.cat([torch.cat(columns, dim=1).flatten(), torch.tensor([self.n_writers])])

    @cached_property
    @torch.inference_mode(False)
    def legal(self) -> Bool[Tensor, "writers readers"]:
        """True where an edge exists."""
        return torch.arange(self.n_writers)[:, None] < self.visible[None, :]

    @cached_property
    @torch.inference_mode(False)
    def reader_owner(self) -> Int[Tensor, "readers"]:
        """The writer that each reader feeds; `n_writers` for `logits`, which feeds none."""
        layers = torch.arange(self.n_layers)[:, None] * self.writers_per_layer + 1
        heads = torch.arange(self.n_heads).repeat(3)
        owners = torch.cat([heads, torch.tensor([self.n_heads])]) if self.mlp else heads
        return torch.cat([(layers + owners).flatten(), torch.tensor([self.n_writers])])

    def stages(self) -> list[slice]:
        """Readers in the order of computation: heads of layer 0, MLP of layer 0, ..., logits."""
        stages: list[slice] = []
        for layer in range(self.n_layers):
            stages.append(self.slots(layer))
            if self.mlp:
                stages.append(slice(self.mlp_reader(layer), self.mlp_reader(layer) + 1))
        return [*stages, slice(self.logits, self.logits + 1)]

    def on_paths(self, edges: Bool[Tensor, "writers readers"]) -> Bool[Tensor, "writers readers"]:
        """True where the writer is reached from `input` and the reader leads to `logits`.

        Paths are within `edges`. Any of a head's three readers makes it reached.
        """
        mask, owner = edges.cpu().numpy(), self.reader_owner.numpy()
        useful = np.zeros(self.n_writers + 1, dtype=bool)
        useful[self.n_writers] = True
        for readers in reversed(self.stages()):
            wanted = useful[owner[readers]]
            useful[:-1] |= mask[:, readers][:, wanted].any(axis=1)
        return torch.from_numpy(self.reached(mask)[:, None] & useful[owner][None, :])

    def reached(self, mask: Bool[np.ndarray, "writers readers"]) -> Bool[np.ndarray, "writers"]:
        """Writers that `input` reaches along edges; any of a head's three readers is enough."""
        owner = self.reader_owner.numpy()
        reached = np.zeros(self.n_writers + 1, dtype=bool)
        reached[0] = True
        for readers in self.stages():
            fed = mask[:, readers][reached[:-1]].any(axis=0)
            np.logical_or.at(reached, owner[readers], fed)
        return reached[:-1]

    def carrying(
        self,
        edges: Bool[Tensor, "writers readers"],
        neurons: Bool[Tensor, "writers d_model"] | None,
    ) -> Bool[Tensor, "writers readers"]:
        """The edges on paths from `input` to `logits` along edges whose writer has a neuron in."""
        some = edges.cpu() if neurons is None else edges.cpu() & neurons.cpu().any(dim=1)[:, None]
        return some & self.on_paths(some)

    # Names

    def writer_name(self, writer: int, spelling: Spelling = "mib") -> str:
        """Name of a writer: `input`, `a3.h7`, `m3`."""
        given, head, mlp, *_ = _SPELLED[spelling]
        if writer == 0:
            return given
        layer, place = divmod(writer - 1, self.writers_per_layer)
        return mlp.format(layer) if place == self.n_heads else head.format(layer, place)

    def reader_name(self, reader: int, spelling: Spelling = "mib") -> str:
        """Name of a reader: `a3.h7<q>`, `m3`, `logits`."""
        *_, head, mlp, logits = _SPELLED[spelling]
        if reader == self.logits:
            return logits.format(self.n_layers - 1)
        layer, place = divmod(reader, self.readers_per_layer)
        slot, index = divmod(place, self.n_heads)
        return mlp.format(layer) if slot == 3 else head.format(layer, index, SLOTS[slot])

    def edge_name(self, writer: int, reader: int, spelling: Spelling = "mib") -> str:
        """Name of an edge: `a9.h6->m10`."""
        return f"{self.writer_name(writer, spelling)}->{self.reader_name(reader, spelling)}"

    def writer(self, name: str) -> int:
        """Index of a writer named in any known spelling.

        Raises:
            UnknownName: this graph has no such writer.
        """
        if name in _INPUT_FORMS:
            return 0
        layer, head, _ = self._place(name, "writer")
        return self.mlp_writer(layer) if head is None else self.head(layer, head)

    def reader(self, name: str) -> int:
        """Index of a reader named in any known spelling.

        Raises:
            UnknownName: this graph has no such reader.
        """
        final = _LOGITS_FORM.fullmatch(name)
        if final and final[1] in (None, str(self.n_layers - 1)):
            return self.logits
        layer, head, slot = self._place(name, "reader")
        if head is None:
            return self.mlp_reader(layer)
        if slot is None:
            raise UnknownName("reader", name, [f"a{layer}.h{head}<{s}>" for s in SLOTS])
        return self.slot(layer, SLOTS.index(slot), head)

    def index(self, name: str) -> EdgeIndex:
        """Where the edge `name` stands: `values[graph.index("a0.h1->m2")]`.

        Raises:
            UnknownName: the name is not an edge of this graph.
        """
        source, arrow, target = name.partition("->")
        if not arrow:
            raise UnknownName("edge", name, ["input->logits"])
        edge = EdgeIndex(self.writer(source.strip()), self.reader(target.strip()))
        visible = int(self.visible[edge.reader])
        if edge.writer >= visible:
            near = [self.edge_name(writer, edge.reader) for writer in range(min(3, visible))]
            raise UnknownName("edge", name, near)
        return edge

    def _place(self, name: str, kind: str) -> tuple[int, int | None, str | None]:
        for form in _NODE_FORMS:
            match = form.fullmatch(name)
            if match is None:
                continue
            parts = match.groupdict()
            layer = int(parts["layer"])
            head = int(parts["head"]) if parts.get("head") is not None else None
            slot = parts["slot"].lower() if parts.get("slot") else None
            if layer < self.n_layers and (head < self.n_heads if head is not None else self.mlp):
                return layer, head, slot
        last = self.n_layers - 1
        known = ["input", "logits", f"a{last}.h{self.n_heads - 1}", *[f"m{last}"] * self.mlp]
        raise UnknownName(kind, name, known)
