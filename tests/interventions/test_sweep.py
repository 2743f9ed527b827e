"""Logits of tokens under many plans, against one forward pass at a time, with hooks too, and
against runs of `intervene`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from helpers.models import families
from helpers.pairs import token_interchanges
from mechassay.errors import BadPairs
from mechassay.features import Directions
from mechassay.interventions.intervene import intervene
from mechassay.interventions.intervention import Add, Interchange, Intervention
from mechassay.interventions.site import Site, load_site
from mechassay.interventions.sweep import logit_differences, token_logits
from mechassay.models.forward import forward
from mechassay.models.model import Model, make_model
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.testing import tiny
from mechassay.testing.tiny import subject
from mechassay.utils.display import SILENT

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
    d_model, generator = model.decoder.d_model, torch.Generator().manual_seed(1)
    hows = [
        Interchange(),
        *(
            Interchange(
                features=Directions.of(torch.randn(d_model, k, generator=generator).double())
            )
            for k in (1, 3)
        ),
    ]
    places = [
        (Site(layer, region), how) for how in hows for layer in range(3) for region in REGIONS
    ]
    tokens = torch.tensor([[1, 50, 7], [2, 51, 7], [3, 52, 7], [4, 53, 7]])
    plans = [{site: how} for site, how in places]
    found = token_logits(model, batch, plans, tokens, progress=SILENT)
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
    plans = [{site: how} for site, how in places]
    found = token_logits(model, batch, plans, tokens, progress=SILENT)
    assert (found.after == found.base).all()


def test_the_last_token_of_the_last_layer_is_the_source() -> None:
    model, batch = make_model(tiny.build("gpt2", torch.float64)), pairs()
    tokens = torch.tensor([[1, 50]] * 4)
    found = token_logits(model, batch, [{Site(2, "last"): Interchange()}], tokens, progress=SILENT)
    swapped = InterchangeBatch.from_tokens(
        base=[x[m].tolist() for x, m in zip(batch.source, batch.source_mask, strict=True)],
        source=[x[m].tolist() for x, m in zip(batch.base, batch.base_mask, strict=True)],
        labels=[1] * 4,
    )
    other = token_logits(model, swapped, [], tokens, progress=SILENT)
    np.testing.assert_allclose(found.after[0], other.base, atol=1e-12)


def joint_plans(model: Model) -> list[dict[Site, Intervention]]:
    v = torch.linspace(-1, 1, model.decoder.d_model, dtype=torch.float64)
    given: list[dict[str, Intervention]] = [
        {"heads.0.1@all": Interchange(), "heads.1.3@all": Interchange(), "resid.1@x": Add(v)},
        {"resid.2@x": Interchange()},  # changes nothing that is read
        {"mlp.1@last": Interchange(alpha=0.5)},
        {"resid.0@last": Interchange(alpha=0.0)},
        {"resid.-1@all": Interchange()},
    ]
    return [{load_site(site): each for site, each in plan.items()} for plan in given]


@pytest.mark.parametrize("family", families())
def test_each_difference_is_that_of_a_run_of_its_own(family: str) -> None:
    model = subject(family, torch.float64).model
    batch = token_interchanges(7, equal=True)
    found = logit_differences(model, batch, joint_plans(model), progress=SILENT)
    assert found.after.shape == (7, 5)
    for number, plan in enumerate(joint_plans(model)):
        out = intervene(model, batch, plan)
        np.testing.assert_allclose(
            found.after[:, number], (out.other_log_probs - out.log_probs).numpy(), atol=1e-12
        )
        np.testing.assert_allclose(
            found.base, (out.other_base_log_probs - out.base_log_probs).numpy(), atol=1e-12
        )
    # What changes nothing is the base run's own, to the last bit.
    np.testing.assert_array_equal(found.after[:, 3], found.base)
    assert (found.after[:, [0, 2, 4]] != found.base[:, None]).all()


def test_first_tokens_count_and_chunks_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model = subject("llama", torch.float64).model
    long = token_interchanges(6, equal=True, label_tokens=3)
    short = replace(long, labels=long.labels[:, :1])
    whole = logit_differences(model, short, joint_plans(model), progress=SILENT)
    path = "mechassay.interventions.sweep.token_budget"
    monkeypatch.setattr(path, lambda *given: 12)
    for batch in (long, long.teacher_forced(), short):
        found = logit_differences(model, batch, joint_plans(model)[1:4], progress=SILENT)
        np.testing.assert_allclose(found.after, whole.after[:, 1:4], atol=1e-12)
        np.testing.assert_allclose(found.base, whole.base, atol=1e-12)


def test_both_labels_are_needed() -> None:
    model = subject("gpt2").model
    batch = replace(token_interchanges(3), base_labels=None)
    with pytest.raises(BadPairs, match="needs the label of every base .base_labels.; pair 0 has"):
        logit_differences(model, batch, [{"resid.1@last": Interchange()}])
