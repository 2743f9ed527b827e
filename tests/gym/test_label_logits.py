"""The stack of all changes against one forward pass at a time, with hooks on the module itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from families import families
from mechassay.features import Directions
from mechassay.gym.label_logits import label_logits
from mechassay.interchange import InterchangeBatch
from mechassay.interventions.intervention import Interchange
from mechassay.interventions.site import Site
from mechassay.models.forward import forward
from mechassay.models.model import Model, make_model
from mechassay.progress import SILENT
from mechassay.testing import tiny

REGIONS = ("noun", "verb", "last")


def pairs(seed: int = 0) -> InterchangeBatch:
    """Prompts of different lengths that begin alike; regions end at different places."""
    generator = torch.Generator().manual_seed(seed)
    base, source, ends = list[list[int]](), list[list[int]](), list[list[int]]()
    for n, m in ((3, 3), (4, 6), (6, 4), (3, 5)):
        head, tail = torch.randint(1, 97, (2, 2), generator=generator).tolist()
        ours = torch.randint(1, 97, (n,), generator=generator).tolist()
        theirs = torch.randint(1, 97, (m,), generator=generator).tolist()
        base.append([*head, *ours, *tail])
        source.append([*head, *theirs, *tail])
        ends.append([1 + n, 1 + m])
    return InterchangeBatch.from_tokens(
        base,
        source,
        labels=[3, 4, 5, 6],
        base_labels=[7, 8, 9, 10],
        columns={
            "noun": ([2] * 4, [2] * 4),
            "verb": ([a for a, _ in ends], [b for _, b in ends]),
        },
    )


def one_at_a_time(
    model: Model, batch: InterchangeBatch, row: int, layer: int, region: str, change: Any
) -> torch.Tensor:
    """The last logits of one base without padding, run whole, a layer's output changed at one
    token.
    """
    tokens, at = unpadded(batch, row, region)
    seen: list[torch.Tensor] = []

    def keep(place: str, number: int, value: torch.Tensor) -> torch.Tensor:
        if (place, number) == ("stream", layer + 1):
            seen.append(value[0, at[1]].clone())
        return value

    def put(place: str, number: int, value: torch.Tensor) -> torch.Tensor:
        if (place, number) == ("stream", layer + 1):
            value = value.clone()
            value[0, at[0]] = change(value[0, at[0]][None], seen[0][None])[0]
        return value

    decoder = model.decoder
    for ids, edit in ((tokens[1], keep), (tokens[0], put)):
        ctx = decoder.context(torch.ones_like(ids, dtype=torch.bool))
        x = decoder.add_positions(decoder.embed(ids), ctx)
        final = edit("stream", len(decoder.layers), forward(decoder, x, ctx, edit=edit))
    return decoder.readout(final[:, -1]).all()[0]  # pyright: ignore[reportPossiblyUnboundVariable]


def unpadded(
    batch: InterchangeBatch, row: int, region: str
) -> tuple[list[torch.Tensor], list[int]]:
    """Base and source of a row, and the place of a region in each."""
    tables = ((batch.base, batch.base_mask), (batch.source, batch.source_mask))
    tokens = [table[row][mask[row]][None] for table, mask in tables]
    at = [
        int(column[row]) - (table.shape[1] - ids.shape[1])
        for column, (table, _), ids in zip(batch.columns[region], tables, tokens, strict=True)
    ]
    return tokens, at


def with_hooks(
    hf: Any, batch: InterchangeBatch, row: int, layer: int, region: str, change: Any
) -> torch.Tensor:
    """The same with hooks on the module of transformers."""
    blocks = next(
        each for each in hf.modules() if isinstance(each, torch.nn.ModuleList) and len(each) == 3
    )
    tokens, at = unpadded(batch, row, region)
    seen: list[torch.Tensor] = []

    def keep(module: Any, given: Any, out: Any) -> None:
        seen.append((out[0] if isinstance(out, tuple) else out)[0, at[1]].clone())

    def put(module: Any, given: Any, out: Any) -> Any:
        stream = (out[0] if isinstance(out, tuple) else out).clone()
        stream[0, at[0]] = change(stream[0, at[0]][None], seen[0][None])[0]
        return (stream, *out[1:]) if isinstance(out, tuple) else stream

    handle = blocks[layer].register_forward_hook(keep)
    hf(tokens[1])
    handle.remove()
    handle = blocks[layer].register_forward_hook(put)
    logits = hf(tokens[0]).logits[0, -1]
    handle.remove()
    return logits


@torch.no_grad()
@pytest.mark.parametrize("family", families())
def test_the_stack_is_one_site_at_a_time(family: str) -> None:
    hf = tiny.build(family, torch.float64)
    model, batch = make_model(hf), pairs()
    generator = torch.Generator().manual_seed(1)
    hows = [
        Interchange(),
        *(
            Interchange(features=Directions.of(torch.randn(32, k, generator=generator).double()))
            for k in (1, 3)
        ),
    ]
    places = [
        (Site(layer, region), how) for how in hows for layer in range(3) for region in REGIONS
    ]
    tokens = torch.tensor([[1, 50, 7], [2, 51, 7], [3, 52, 7], [4, 53, 7]])
    found = label_logits(model, batch, places, tokens, progress=SILENT)
    largest = {"decoder": 0.0, "hooks": 0.0}
    for number, (site, how) in enumerate(places):
        for row in range(4):
            at = batch, row, site.layer, str(site.position), how
            slow = {"decoder": one_at_a_time(model, *at)}
            if row == number % 4:
                slow["hooks"] = with_hooks(hf, *at)
            for name, logits in slow.items():
                expected = logits[tokens[row]].double().numpy()
                error = float(np.abs(found.after[number, row] - expected).max())
                largest[name] = max(largest[name], error)
    # transformers has rotary positions in fp32.
    assert largest["decoder"] < 1e-9 and largest["hooks"] < 2e-5, largest
    # Interventions do something, or else nothing would be tested.
    assert np.abs(found.after - found.base).max() > 0.1


def test_what_nothing_reads_is_the_base_run_itself() -> None:
    model, batch = make_model(tiny.build("llama", torch.float64)), pairs()
    tokens = torch.tensor([[1, 50]] * 4)
    places = [(Site(2, "noun"), Interchange()), (Site(0, 0), Interchange())]
    found = label_logits(model, batch, places, tokens, progress=SILENT)
    assert (found.after == found.base).all()


def test_the_last_token_of_the_last_layer_is_the_source() -> None:
    model, batch = make_model(tiny.build("gpt2", torch.float64)), pairs()
    tokens = torch.tensor([[1, 50]] * 4)
    found = label_logits(model, batch, [(Site(2, "last"), Interchange())], tokens, progress=SILENT)
    swapped = InterchangeBatch.from_tokens(
        base=[x[m].tolist() for x, m in zip(batch.source, batch.source_mask, strict=True)],
        source=[x[m].tolist() for x, m in zip(batch.base, batch.base_mask, strict=True)],
        labels=[1] * 4,
    )
    other = label_logits(model, swapped, [], tokens, progress=SILENT)
    np.testing.assert_allclose(found.after[0], other.base, atol=1e-12)
