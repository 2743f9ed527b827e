"""Attribution of nodes and neurons: the gradient at what a writer wrote, times its change.

For dimension d of writer u, attribution patching estimates the drop in the objective m when that
neuron carries the counterfactual activation (Mueller et al. 2025, eq. 3 with dm/da_u, appendix
E.2):

    S[u, d] = - sum_{positions} (a'_u - a_u)[d] * dm/da_u[d],   averaged over examples.

dm/da_u is the total derivative at the writer's OUTPUT. All readers see the stream, so it is the
gradient of the stream right after u was written: one for the input, one for all heads of a layer,
one for each MLP, by autograd from the plain forward. MIB's code took the gradient at the MLP's
INPUT for MLPs, which mixes in the MLP's own derivative (a confirmed bug in its published rows).

With a post-norm P (Gemma) the heads' gradient is pulled back through P at each run: J_P^T g. With
M_h = sum_{positions} dz_h g^T for the change dz_h of head h's mix,

    S[h, d] = - sum_e W_O,h[e, d] M_h[e, d],

so heads are never expanded. Gradients at several interpolations of the input are summed before
that. Sums over d are the sums of EAP's edge scores over a writer's outgoing edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.circuits.attribution import Taps
from mechassay.models.decoder import Decoder, Norm, NormStatistics, at_least_fp32
from mechassay.models.model import Model
from mechassay.models.trace import Contrast


@dataclass(frozen=True, eq=False)
class WriterGradients:
    """Gradients at what the writers wrote, summed over steps, at the last columns only."""

    embed: Float[Tensor, "batch pos d_model"]
    heads: tuple[Float[Tensor, "batch _ d_model"], ...]
    mlp: tuple[Float[Tensor, "batch _ d_model"], ...]

    @staticmethod
    def of(
        decoder: Decoder, taps: Taps, total: Tensor, *, times: int, columns: int
    ) -> WriterGradients:
        """Differentiate `total`, a sum over `times` stacked copies of the batch, at all writers."""
        wanted = [x for x in (taps.before[0], *taps.middle, *taps.mlp_out) if x is not None]
        found = iter(torch.autograd.grad(total, wanted))

        def summed(x: Tensor) -> Tensor:
            return x.unflatten(0, (times, -1)).sum(0)

        with torch.no_grad():
            embed = summed(at_least_fp32(next(found))[:, -columns:])
            heads: list[Tensor] = []
            for layer, post in zip(decoder.layers, taps.post, strict=True):
                gradient = at_least_fp32(next(found))[:, -columns:]
                if post is not None and layer.attention.post_norm is not None:
                    at = NormStatistics(*(part[:, -gradient.shape[1] :] for part in post))
                    gradient = pull_back(layer.attention.post_norm, gradient, at)
                heads.append(summed(gradient))
            return WriterGradients(
                embed, tuple(heads), tuple(summed(at_least_fp32(x)[:, -columns:]) for x in found)
            )


def pull_back(
    norm: Norm, gradient: Float[Tensor, "*lead d"], at: NormStatistics
) -> Float[Tensor, "*lead d"]:
    """J^T gradient, with the J of `Norm.push_forward`: from a norm's output to its input."""
    weighted = flat = gradient * norm.weight.to(gradient.dtype)
    if not norm.frozen:
        flat = weighted - at.xhat * (weighted * at.xhat).mean(-1, keepdim=True)
    if norm.centred:
        flat = flat - weighted.mean(-1, keepdim=True)
    return flat * at.rscale


@torch.no_grad()
def add_products(
    model: Model,
    contrast: Contrast,
    gradients: WriterGradients,
    into: Float[Tensor, "writers d_model"],
) -> None:
    """Add -sum over examples and positions of (a'_u - a_u) * gradient to `into`."""
    graph = model.graph

    def add_stream(row: int, clean: Tensor, other: Tensor, gradient: Tensor) -> None:
        n = gradient.shape[1]
        change = at_least_fp32(other[:, -n:] - clean[:, -n:])
        into[row] -= torch.einsum("btd,btd->d", change, gradient)

    add_stream(0, contrast.clean.embed, contrast.other.embed, gradients.embed)
    for index in range(graph.n_layers):
        clean, other = contrast.clean.layers[index], contrast.other.layers[index]
        gradient = gradients.heads[index]
        n, out = gradient.shape[1], at_least_fp32(model.decoder.layers[index].attention.out)
        change = at_least_fp32(other.z[:, :, -n:] - clean.z[:, :, -n:])
        moments = change.permute(1, 3, 0, 2).flatten(2) @ gradient.flatten(0, 1)
        into[graph.heads(index)] -= (moments * out).sum(1)
        if clean.mlp is not None and other.mlp is not None:
            add_stream(graph.mlp_writer(index), clean.mlp, other.mlp, gradients.mlp[index])
