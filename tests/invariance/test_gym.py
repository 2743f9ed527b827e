"""What odds and the directions of methods keep, for any weights and values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mechassay.features import DAS, LDA, PCA, DiffInMeans, Directions, Fit, KMeans, Probe
from mechassay.features.featurizer import random_basis
from mechassay.features.finder import Found
from mechassay.gym import odds
from mechassay.interventions.site import Site, load_site
from mechassay.models.model import make_model
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.testing import tiny
from mechassay.utils.display import SILENT

FINDERS = (DiffInMeans(), PCA(k=1), KMeans(), LDA(), Probe(l2=10.0))
D = 6


def found(n: int = 60, apart: float = 4.0, seed: int = 0) -> Found:
    """Two classes in turn, Gaussian, `apart` along a direction that is no axis."""
    generator = torch.Generator().manual_seed(seed)
    spreads = torch.tensor([1.0, 0.9, 0.8, 0.7, 0.6, 0.5], dtype=torch.float64)
    noise = torch.randn(n, D, generator=generator, dtype=torch.float64) * spreads
    along = torch.linspace(-1, 1, D, dtype=torch.float64)
    classes = torch.arange(n) % 2
    return Found(Site(0), noise + apart * classes[:, None] * along / along.norm(), None, classes)


def direction(finder: Any, values: Found) -> torch.Tensor:
    featurizer = finder.find(values)
    vectors = featurizer.axes if hasattr(featurizer, "axes") else featurizer.vectors
    return vectors[:, 0] / vectors[:, 0].norm()


def same_line(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a @ b).abs() > 1 - 1e-9)


@pytest.mark.parametrize("finder", FINDERS, ids=lambda finder: finder.name)
def test_directions_do_not_hang_on_where_values_are_or_what_classes_are_called(finder: Any) -> None:
    values = found()
    at = direction(finder, values)
    moved = replace(values, base=values.base + 7 * torch.ones(D, dtype=torch.float64))
    assert same_line(direction(finder, moved), at)
    assert values.classes is not None
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    other = replace(values, base=values.base[order], classes=values.classes[order])
    assert same_line(direction(finder, other), at)
    renamed = replace(values, classes=1 - values.classes)
    assert same_line(direction(finder, renamed), at)


def test_methods_agree_on_two_far_clusters() -> None:
    values = found(n=4_000, apart=200.0)
    lines = [direction(finder, values) for finder in (DiffInMeans(), PCA(k=1), KMeans())]
    assert all(float((lines[0] @ line).abs()) > 0.9999 for line in lines[1:])
    # Of one cloud, which has no clusters, they do not.
    cloud = found(n=4_000, apart=0.0)
    assert float((direction(DiffInMeans(), cloud) @ direction(PCA(k=1), cloud)).abs()) < 0.99


def test_a_direction_and_then_all_others_is_the_whole_vector() -> None:
    generator = torch.Generator().manual_seed(0)
    basis = random_basis(D, generator, torch.float64)
    base, source = torch.randn(2, 5, D, generator=generator, dtype=torch.float64)
    one, others = Directions(basis[:, :1]), Directions(basis[:, 1:])
    after = others.change(one.change(base, source), source)
    np.testing.assert_allclose(after.numpy(), source.numpy(), atol=1e-12)


def linear_model() -> Any:
    """Blocks that write nothing before a norm that is linear, so that logits are linear too."""
    hf: Any = tiny.build("mistral", torch.float64)
    for layer in hf.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    hf.model.embed_tokens.weight.mul_(0.01)
    hf.model.embed_tokens.weight[:, 0] = 50.0
    return hf


def swapped(n: int, *, columns: int = 4, seed: int = 0) -> InterchangeBatch:
    generator = torch.Generator().manual_seed(seed)
    base, source = list[list[int]](), list[list[int]]()
    for _ in range(n):
        pair = torch.randint(1, 97, (2, columns), generator=generator).tolist()
        base += pair
        source += pair[::-1]
    labels = torch.randint(1, 97, (n, 2), generator=generator)
    own, other = labels.flatten(), labels.flip(1).flatten()
    return InterchangeBatch.from_tokens(
        base, source, labels=other[:, None], base_labels=own[:, None]
    )


def test_in_a_linear_model_odds_are_a_product_and_training_finds_the_best_direction() -> None:
    """odds = (a.(h_s - h_b)) (a.(w_s - w_b)), so that the best direction is the first eigenvector
    of the mean of their symmetrised outer products.
    """
    hf = linear_model()
    model, batch = make_model(hf), swapped(8, columns=1)
    weights = hf.model.embed_tokens.weight
    states = weights[batch.source[:, -1]] - weights[batch.base[:, -1]]
    assert batch.base_labels is not None
    unembedding = hf.lm_head.weight * hf.model.norm.weight
    words = unembedding[batch.labels[:, 0]] - unembedding[batch.base_labels[:, 0]]
    # Where all prompts have the same large first number, the norm does not let it change.
    words[:, 0] = 0
    # It divides by the root mean square, which is that of the constant first number.
    scale = float(torch.linalg.vector_norm(weights[0]) / 32**0.5)
    products = states.T @ words / scale / len(batch)
    values, vectors = torch.linalg.eigh((products + products.T) / 2)
    best = vectors[:, -1]
    fit = Fit({Site(1, "last"): Directions(best[:, None])}, model=model)
    at_best = odds(fit, batch, progress=SILENT)["resid.1@last"].mean()
    assert abs(at_best - float(values[-1])) < 0.01 * float(values[-1])
    das = DAS(k=1, lr=0.05, steps=400, batch_size=len(batch), loss="logit-difference")
    trained = das.fit(model, batch, ["resid.1@last"], progress=SILENT)
    reached = odds(trained, batch, progress=SILENT)["resid.1@last"].mean()
    assert reached > 0.99 * at_best
    assert float((trained.directions("resid.1@last")[:, 0] @ best).abs()) > 0.95


def test_shared_keys_and_values_are_repeated_ones() -> None:
    """A model whose heads share keys and values has the odds of its twin that repeats them."""
    import transformers

    shape: dict[str, Any] = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        shared: Any = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**shape, num_key_value_heads=2)
        ).double()
        twin: Any = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**shape, num_key_value_heads=4)
        ).double()
    weights = dict(shared.state_dict())
    for name, weight in weights.items():
        if "k_proj" in name or "v_proj" in name:
            heads = weight.unflatten(0, (2, 8))
            weights[name] = heads.repeat_interleave(2, dim=0).flatten(0, 1)
    twin.load_state_dict(weights)
    batch = swapped(4, seed=2)
    vector = torch.randn(32, generator=torch.Generator().manual_seed(3)).double()
    numbers = [
        odds(
            Fit(dict.fromkeys(map(load_site, ("resid.0@1", "resid.1@last")), at), model=model),
            batch,
            progress=SILENT,
        ).values
        for at in (Directions.of(vector),)
        for model in (
            make_model(shared.requires_grad_(False)),
            make_model(twin.requires_grad_(False)),
        )
    ]
    np.testing.assert_allclose(*numbers, atol=1e-10)
    assert np.abs(numbers[0]).max() > 1e-4
