"""The sizes of a model that say which sites it has, and how wide each is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mechassay.errors import BadUsage
from mechassay.graph import Graph
from mechassay.interventions.site import Site
from mechassay.models.model import Model


@dataclass(frozen=True)
class ModelShape:
    """Layers and heads, the width of the stream, and that of a head's mix."""

    graph: Graph
    d_model: int
    d_head: int

    @staticmethod
    def of(model: Model) -> ModelShape:
        """That of a loaded model."""
        d_head = model.decoder.layers[0].attention.out.shape[1]
        return ModelShape(model.graph, model.decoder.d_model, d_head)

    def width(self, site: Site) -> int:
        """Numbers that a token has at a site."""
        if site.part != "heads":
            return self.d_model
        return (len(site.heads) or self.graph.n_heads) * self.d_head

    def __str__(self) -> str:
        graph = self.graph
        return (
            f"{graph.n_layers} layers, {graph.n_heads} heads of {self.d_head}, width {self.d_model}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Its numbers, as JSON has them."""
        widths = {"d_model": self.d_model, "d_head": self.d_head}
        return {**asdict(self.graph), **widths, "fingerprint": self.graph.fingerprint}

    @staticmethod
    def from_dict(told: Mapping[str, Any]) -> ModelShape:
        """What `as_dict` gave.

        Raises:
            BadUsage: numbers that are missing, too many or of another kind.
        """
        sizes = dict(told)
        fingerprint = sizes.pop("fingerprint", None)
        flags = {name: sizes.pop(name, None) for name in ("parallel", "mlp")}
        if set(sizes) != {"n_layers", "n_heads", "d_model", "d_head"}:
            raise BadUsage(
                "A model's shape has n_layers, n_heads, d_model, d_head, parallel, mlp and"
                f" fingerprint; got {', '.join(map(str, told)) or 'nothing'}."
            )
        numbers = list(sizes.values())
        if any(type(x) is not int or x < 1 for x in numbers) or any(
            type(flag) is not bool for flag in flags.values()
        ):
            raise BadUsage(f"A model's shape has positive integers and true or false; got {told}.")
        graph = Graph(sizes["n_layers"], sizes["n_heads"], **flags)
        if graph.fingerprint != fingerprint:
            raise BadUsage("The fingerprint of a model's graph does not match its shape.")
        return ModelShape(graph, sizes["d_model"], sizes["d_head"])
