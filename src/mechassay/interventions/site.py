"""A site: where in a forward pass an intervention reads and writes.

    resid.12@last        the residual stream after block 12 (resid.-1: after the embedding)
    heads.7.3,7.9@all    what heads 3 and 9 of layer 7 mix, before W_O; heads.7: all of layer 7
    mlp.5@subject        what the MLP of layer 5 writes, after its post-norm if any

A position is the name of a column of the batch (a part of the prompts, or "last"), the number of
a token of the prompt (from 0; negative from its end), or "all". Other projects' spellings are
read too: TransformerLens's hooks (`blocks.12.hook_resid_post`), nnterp's (`layers_output[12]`),
MIB's units (`ResidualStream(Layer-12,Token-last_token)`). Where another project's name means
another tensor in the model at hand (an MLP's output before a norm), it is refused.

`ModelShape` has the sizes of a model that say which sites it has, and how wide each is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from numbers import Integral
from typing import Any

from mechassay.errors import BadUsage, one_of
from mechassay.interventions.names import PARTS, Part
from mechassay.models.decoder import Decoder
from mechassay.models.graph import Graph
from mechassay.models.model import Model
from mechassay.models.patched_forward import Entry, depth_of
from mechassay.prompts.pairs import LAST
from mechassay.utils.arguments import check_fields, checked

Position = str | int
ALL = "all"

_OWN = re.compile(r"(?P<part>[a-z]+)\.(?P<where>-?\d+(?:\.\d+(?:,\s*-?\d+\.\d+)*)?)$")
_TRANSFORMER_LENS = re.compile(
    r"blocks\.(?P<layer>\d+)\.(?P<hook>hook_resid_post|hook_resid_pre|hook_mlp_out|attn\.hook_z)$"
)
_NNTERP = re.compile(r"(?P<name>layers|mlps)_output\[(?P<layer>\d+)\]$")
_MIB = re.compile(
    r"(?P<unit>ResidualStream|AttentionHead|MLP)\(Layer[-:_](?P<layer>\d+)"
    r"(?:,Head[-:_](?P<head>\d+))?,Token[-:_](?P<token>[\w.-]+)\)$"
)
_MIB_TOKENS = {"last_token": LAST}
_HOOK_AFTER_NORM = ("gemma2", "gemma3_text")
"""Families in which TransformerLens's `hook_mlp_out` fires after the norm behind an MLP."""
_MIB_PARTS: dict[str, Part] = {"ResidualStream": "resid", "AttentionHead": "heads", "MLP": "mlp"}


@dataclass(frozen=True)
class Site:
    """One place in a forward pass.

    Attributes:
        layer: the block; -1 in "resid" is the embedding.
        position: a column's name, a token's number, or "all".
        part: the residual stream after the block, mixes of its heads, or its MLP's output.
        heads: which heads; none means all of the layer. Only of part "heads".
        foreign: another project's name that it was read from, if any.
    """

    layer: int
    position: Position = LAST
    part: Part = "resid"
    heads: tuple[int, ...] = ()
    foreign: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.heads and self.part != "heads":
            raise BadUsage(f"Only sites of part 'heads' have heads; got part {self.part!r}.")
        if len(set(self.heads)) < len(self.heads):
            raise BadUsage(f"A site names each head once; got {self.heads}.")

    def __str__(self) -> str:
        where = ",".join(f"{self.layer}.{head}" for head in self.heads) or str(self.layer)
        return f"{self.part}.{where}@{self.position}"

    @property
    def place(self) -> tuple[Entry, int]:
        """The place of the forward pass, and its layer, that the site reads and writes."""
        if self.part == "resid":
            return "stream", self.layer + 1
        return ("z" if self.part == "heads" else "mlp"), self.layer

    @property
    def depth(self) -> int:
        """Where the site comes in the order of the forward pass."""
        return depth_of(*self.place)

    def at(self, position: Position) -> Site:
        """The same site at another position."""
        return replace(self, position=position)

    def width(self, decoder: Decoder) -> int:
        """Numbers that a token has at the site: d_model, or heads x d_head."""
        if self.part != "heads":
            return decoder.d_model
        attention = decoder.layers[self.layer].attention
        return (len(self.heads) or attention.n_heads) * attention.out.shape[1]

    def check(self, model: Model) -> Site:
        """The site, if the model has it.

        Raises:
            BadUsage: it has no such layer, head or MLP; or the name that the site was read from
                means another tensor of this model.
        """
        self.check_graph(model.graph, model.name)
        mlp = model.decoder.layers[self.layer].mlp if self.part == "mlp" else None
        norm = None if mlp is None else mlp.post_norm
        after_norm = self.foreign.startswith("blocks.") and model.family in _HOOK_AFTER_NORM
        if self.foreign and norm is not None and not after_norm:
            what = "multiplied" if norm.eps is None else "normed"
            raise BadUsage(
                f"In {model.name} ({model.family}), {self.foreign} is the output of the MLP before"
                f" it is {what}, which is no site here; {self.part}.{self.layer} is the output"
                " after that, as it enters the residual stream."
            )
        return self

    def check_graph(self, graph: Graph, model: str) -> Site:
        """The site, if a model of this graph has it.

        Args:
            model: what the message calls it.

        Raises:
            BadUsage: it has no such layer, head or MLP.
        """
        least = -1 if self.part == "resid" else 0
        if not least <= self.layer < graph.n_layers:
            raise BadUsage(
                f"Site {self}: {model} has layers {least} to {graph.n_layers - 1}; got"
                f" {self.layer}."
            )
        wrong = [head for head in self.heads if not 0 <= head < graph.n_heads]
        if wrong:
            raise BadUsage(
                f"Site {self}: {model} has heads 0 to {graph.n_heads - 1}; got {wrong[0]}."
            )
        if self.part == "mlp" and not graph.mlp:
            raise BadUsage(f"Site {self}: {model} has no MLPs.")
        return self

    def mib(self, token: str | None = None) -> str:
        """MIB's name of the site.

        Args:
            token: MIB's name of the position, where it is not that of its MCQA task.

        Raises:
            BadUsage: MIB has none.
        """
        token = token or {LAST: "last_token"}.get(str(self.position), str(self.position))
        if self.part == "resid":
            return f"ResidualStream(Layer-{self.layer},Token-{token})"
        if self.part == "heads" and len(self.heads) == 1:
            return f"AttentionHead(Layer-{self.layer},Head-{self.heads[0]},Token-{token})"
        raise BadUsage(f"MIB names residual streams and single heads; got {self}.")

    def transformer_lens(self) -> str:
        """TransformerLens's name of the hook whose activation the site is part of; for an MLP this
        holds in models without a norm or multiplier behind it, and in Gemma.
        """
        if self.part == "resid":
            pre = self.layer < 0
            return f"blocks.{max(self.layer, 0)}.hook_resid_{'pre' if pre else 'post'}"
        hook = "attn.hook_z" if self.part == "heads" else "hook_mlp_out"
        return f"blocks.{self.layer}.{hook}"


SiteLike = Site | str
"""A site, or its spelling."""


def load_site(site: SiteLike) -> Site:
    """A site from its spelling; a site passes through.

    Raises:
        BadUsage: it cannot be read.
    """
    if isinstance(site, Site):
        return site
    if not isinstance(site, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadUsage(f"A site is a Site or text such as resid.12@last; got {site!r}.")
    if (unit := _MIB.match(site.replace(" ", ""))) is not None:
        heads = () if unit["head"] is None else (int(unit["head"]),)
        part = _MIB_PARTS[unit["unit"]]
        token = _MIB_TOKENS.get(unit["token"], unit["token"])
        return Site(int(unit["layer"]), _position(token), part, heads, foreign=site)
    where, _, position = site.partition("@")
    at = _position(position or LAST)
    if (hook := _TRANSFORMER_LENS.match(where)) is not None:
        layer, name = int(hook["layer"]), hook["hook"]
        if name.startswith("hook_resid"):
            return Site(layer - name.endswith("pre"), at, foreign=where)
        return Site(layer, at, "heads" if name.endswith("z") else "mlp", foreign=where)
    if (output := _NNTERP.match(where)) is not None:
        part = "resid" if output["name"] == "layers" else "mlp"
        return Site(int(output["layer"]), at, part, foreign=where)
    return _own(site, where, at)


def index_of(site: SiteLike, sites: Sequence[Site], what: str = "site") -> int:
    """Return the place of a site among others, which are compared by their spelling.

    Args:
        what: Name of the sites in the error message.

    Raises:
        UnknownName: `site` is not among `sites`.
    """
    names = [str(own_site) for own_site in sites]
    return names.index(one_of(what, str(load_site(site)), names))


def _own(site: str, where: str, position: Position) -> Site:
    own = _OWN.match(where)
    if own is None:
        raise BadUsage(
            "A site is spelled like resid.12@last, heads.7.3,7.9@all or mlp.5@subject; got"
            f" {site!r}."
        )
    part: Part = one_of("part of a site", own["part"], PARTS)
    pairs = [condition.strip().split(".") for condition in own["where"].split(",")]
    layers = {int(pair[0]) for pair in pairs}
    if len(layers) > 1:
        raise BadUsage(f"The heads of one site are of one layer; got {site!r}.")
    heads = tuple(int(pair[1]) for pair in pairs if len(pair) > 1)
    return Site(layers.pop(), position, part, heads)


def _position(text: str) -> Position:
    return int(text) if re.fullmatch(r"-?\d+", text) else text


def blocks(model: Model, layers: Sequence[int] | int | None) -> tuple[int, ...]:
    """Layers by number, in the order given; all blocks of the model by default.

    Raises:
        BadUsage: no layer, one twice, what is no number.
    """
    if layers is None:
        return tuple(range(model.graph.n_layers))
    given: list[Any] = [layers] if isinstance(layers, int) else list(layers)
    if not given or len(set(given)) < len(given) or not all(isinstance(x, Integral) for x in given):
        raise BadUsage(f"Layers are numbers, one or more, each once; got {layers!r}.")
    return tuple(map(int, given))


@checked
def sites(
    model: Model,
    *,
    positions: Sequence[Position] | Position = LAST,
    layers: Sequence[int] | int | None = None,
    parts: Sequence[Part] | Part = "resid",
) -> tuple[Site, ...]:
    """Sites of a model, by part, then layer, then head, then position.

    Args:
        positions: columns' names, tokens' numbers or "all".
        layers: blocks; all of them by default, for "resid" without the embedding (-1).
        parts: "resid", "heads" (each head alone) and "mlp".

    Raises:
        BadUsage: the model has no such layer or part.
    """
    places = [positions] if isinstance(positions, str | int) else list(positions)
    kinds: list[Part] = [parts] if isinstance(parts, str) else list(parts)

    def every() -> Iterator[Site]:
        for part in kinds:
            groups = [(head,) for head in range(model.graph.n_heads)] if part == "heads" else [()]
            for layer in blocks(model, layers):
                for heads in groups:
                    for position in places:
                        yield Site(layer, position, part, heads).check(model)

    return tuple(every())


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
    def from_dict(stored: Mapping[str, Any]) -> ModelShape:
        """What `as_dict` gave.

        Raises:
            BadUsage: numbers that are missing, too many or of another kind.
        """
        sizes = dict(stored)
        fingerprint = sizes.pop("fingerprint", None)
        flags = {name: sizes.pop(name, None) for name in ("parallel", "mlp")}
        if set(sizes) != {"n_layers", "n_heads", "d_model", "d_head"}:
            raise BadUsage(
                "A model's shape has n_layers, n_heads, d_model, d_head, parallel, mlp and"
                f" fingerprint; got {', '.join(map(str, stored)) or 'nothing'}."
            )
        numbers = list(sizes.values())
        if any(type(x) is not int or x < 1 for x in numbers) or any(
            type(flag) is not bool for flag in flags.values()
        ):
            raise BadUsage(
                f"A model's shape has positive integers and true or false; got {stored}."
            )
        graph = Graph(sizes["n_layers"], sizes["n_heads"], **flags)
        if graph.fingerprint != fingerprint:
            raise BadUsage("The fingerprint of a model's graph does not match its shape.")
        return ModelShape(graph, sizes["d_model"], sizes["d_head"])
