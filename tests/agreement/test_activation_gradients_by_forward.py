"""EAP-IG-activations into the first layer's heads,
by a forward pass of Llama written here and autograd.

For an edge input->a0.hN<s> the gradient is taken where that reader's input alone is moved, in every
run in which some sublayer's output is interpolated: that of the embedding too. Published code
leaves this one out for these edges where positions are rotary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from helpers.hooks_reference import exact_precision
from mechassay.circuits import ablate
from mechassay.circuits.methods.eap import EAPIGActivations
from mechassay.prompts.batch import Batch
from mechassay.testing.tiny import Subject, subject
from mechassay.utils.display import SILENT

ALPHAS = (0.5, 1.0)
SUBLAYERS = ["input", "a0", "m0", "a1", "m1", "a2", "m2"]
EDGES = [
    ("input->a0.h0<v>", 0, "v"),
    ("input->a0.h3<v>", 3, "v"),
    ("input->a0.h1<q>", 1, "q"),
    ("input->a0.h2<k>", 2, "k"),
]


@pytest.fixture(scope="module")
def case() -> Subject:
    whole = subject("llama", dtype=torch.float64)
    return Subject(whole.model, whole.batch.select([1, 2]))  # these have no padding


class Forward:
    """Llama with grouped queries, one reader of the first layer
    and one sublayer's output open to change.
    """

    def __init__(self, hf: Any) -> None:
        self.hf, self.config = hf, hf.config
        self.d_head = self.config.hidden_size // self.config.num_attention_heads

    def norm(self, x: Tensor, scale: Tensor) -> Tensor:
        return scale * x / (x.square().mean(-1, keepdim=True) + self.config.rms_norm_eps).sqrt()

    def rotated(self, x: Tensor) -> Tensor:
        """Pairs (x_i, x_{i + d/2}) turned by the position times theta^(-2i/d)."""
        half = self.d_head // 2
        theta = float(self.config.rope_parameters["rope_theta"])
        angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * theta ** (
            -torch.arange(half, dtype=x.dtype) / half
        )
        cos, sin = angle.cos()[None, :, None], angle.sin()[None, :, None]
        first, second = x[..., :half], x[..., half:]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def heads(self, layer: int, x: Tensor, moved: Mapping[tuple[int, str], Tensor]) -> Tensor:
        """What the heads of a layer write, summed;
        `moved` is added to the input of (head, kind of reader).
        """
        part, n = self.hf.model.layers[layer], self.config.num_attention_heads
        groups = n // self.config.num_key_value_heads
        outputs: list[Tensor] = []
        weights = {kind: getattr(part.self_attn, f"{kind}_proj").weight for kind in "qkv"}
        for head in range(n):
            seen: dict[str, Tensor] = {}
            for kind, weight in weights.items():
                row = (head if kind == "q" else head // groups) * self.d_head
                read = self.norm(
                    x + moved.get((head, kind), torch.zeros(())), part.input_layernorm.weight
                )
                seen[kind] = read @ weight[row : row + self.d_head].T
            q, k = (self.rotated(seen[kind][:, :, None])[:, :, 0] for kind in "qk")
            scores = q @ k.transpose(1, 2) / math.sqrt(self.d_head)
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            pattern = scores.masked_fill(future, -torch.inf).softmax(-1)
            columns = slice(head * self.d_head, (head + 1) * self.d_head)
            outputs.append(pattern @ seen["v"] @ part.self_attn.o_proj.weight[:, columns].T)
        return torch.stack(outputs).sum(0)

    def mlp(self, layer: int, x: Tensor) -> Tensor:
        part = self.hf.model.layers[layer]
        read, mlp = self.norm(x, part.post_attention_layernorm.weight), part.mlp
        return (
            torch.nn.functional.silu(read @ mlp.gate_proj.weight.T) * (read @ mlp.up_proj.weight.T)
        ) @ mlp.down_proj.weight.T

    def run(
        self,
        tokens: Tensor,
        replaced: Mapping[str, Tensor],
        moved: Mapping[tuple[int, str], Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Logits at the last token, and what each sublayer wrote."""
        wrote = {"input": replaced.get("input", self.hf.model.embed_tokens.weight[tokens])}
        x = wrote["input"]
        for layer in range(self.config.num_hidden_layers):
            own = self.heads(layer, x, moved if layer == 0 else {})
            wrote[f"a{layer}"] = replaced.get(f"a{layer}", own)
            x = x + wrote[f"a{layer}"]
            wrote[f"m{layer}"] = replaced.get(f"m{layer}", self.mlp(layer, x))
            x = x + wrote[f"m{layer}"]
        return self.norm(x[:, -1], self.hf.model.norm.weight) @ self.hf.lm_head.weight.T, wrote


def score(
    forward: Forward,
    batch: Batch,
    other: Mapping[str, Tensor],
    head: int,
    kind: str,
    sublayers: list[str],
) -> float:
    """The mean over sublayers, points and examples of -(a'_input - a_input) .
    d objective / d the reader's input.
    """
    _, clean = forward.run(batch.clean, {}, {})
    total = 0.0
    for sublayer in sublayers:
        for alpha in ALPHAS:
            between = other[sublayer] + alpha * (clean[sublayer] - other[sublayer])
            shift = torch.zeros_like(clean["input"], requires_grad=True)
            logits, _ = forward.run(batch.clean, {sublayer: between}, {(head, kind): shift})
            objective = (logits.gather(1, batch.answers) - logits.gather(1, batch.foils)).sum()
            if sublayer == "a0":
                assert not objective.requires_grad  # what the moved head writes is replaced
                continue
            (gradient,) = torch.autograd.grad(objective, shift)
            total -= float(((other["input"] - clean["input"]) * gradient).sum())
    return total / len(sublayers) / len(ALPHAS) / len(batch)


def test_the_forward_pass_here_is_the_model_s(case: Subject) -> None:
    # To the rounding of its rotary angles, which are in fp32.
    with exact_precision(case.model.hf), torch.no_grad():
        hf: Any = case.model.hf
        logits, _ = Forward(hf).run(case.batch.clean, {}, {})
        torch.testing.assert_close(logits, hf(case.batch.clean).logits[:, -1], rtol=1e-5, atol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("ablation", ["counterfactual", "zero"])
@pytest.mark.parametrize("reading", ["paper", "mib-2025"])
def test_edges_from_the_input_into_the_first_heads(
    case: Subject, reading: Literal["paper", "mib-2025"], ablation: str
) -> None:
    batch = ablate(case.model, case.batch, ablation, progress=SILENT)
    scores = (
        EAPIGActivations(steps=len(ALPHAS), reading=reading)
        .score(case.model, batch, progress=SILENT)
        .values
    )
    with exact_precision(case.model.hf):
        forward = Forward(case.model.hf)
        with torch.no_grad():
            _, other = forward.run(case.batch.counterfactual, {}, {})
        if ablation == "zero":
            other = {name: torch.zeros_like(value) for name, value in other.items()}
        runs = SUBLAYERS if reading == "mib-2025" else ["input"]
        differing = 0
        for edge, head, kind in EDGES:
            expected = score(forward, case.batch, other, head, kind, runs)
            assert float(scores[case.model.graph.index(edge)]) == pytest.approx(
                expected, rel=1e-4, abs=1e-6
            ), edge
            left_out = score(forward, case.batch, other, head, kind, SUBLAYERS[1:]) * (
                1 - 1 / len(SUBLAYERS)
            )
            differing += abs(left_out - expected) > 1e-3 * abs(expected) + 1e-5
    # Without the runs in which the input itself is interpolated it is another number. (Under zeros
    # all four are tiny: a norm's output hardly changes when its input only gets shorter.)
    assert differing >= (1 if ablation == "zero" else len(EDGES) - 1)
