"""Sites that are trained in one run, against full Hugging Face forwards with a hook a site.

Stacks are trainings of single sites, on hooked full forwards; what is read and how it is cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import linregress
from scipy.stats import t as t_distribution
from torch import Tensor

from helpers.hooks_reference import exact_precision
from helpers.pairs import token_interchanges
from helpers.rounding import ADAM_EPS, after_steps
from mechassay.errors import BadFile, BadPairs, BadUsage, NonFinite, UnknownName
from mechassay.features import DAS, DBM, PCA, BoundlessDAS, DiffInMeans, Fit, FullVector
from mechassay.features import training as joint_training
from mechassay.features import training as stacked_training
from mechassay.features import training as training_data
from mechassay.features.das import Rotation, mask_warning
from mechassay.features.featurizer import orthonormal, random_basis
from mechassay.features.training import (
    TrainingData,
    TrainingPlan,
    fall_of,
    joint_gradients,
    step_gradients,
    still_falling,
    train,
)
from mechassay.interventions.intervene import intervene
from mechassay.interventions.intervention import Interchange
from mechassay.interventions.site import Site, load_site
from mechassay.models.model import Model, make_model
from mechassay.prompts.batch import NO_TOKEN
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.testing import tiny
from mechassay.utils.display import SILENT

# Two heads of one layer, one of the next, and the stream behind them.
HEADS = ["heads.0.1@all", "heads.1.0@all", "heads.1.3@all"]
SITES = [*HEADS, "resid.1@x"]
ORDER = [SITES[3], *HEADS]
"""Not that of the forward pass."""


def made(family: str) -> Model:
    return make_model(tiny.build(family, torch.float64))


def rows(n: int = 5, **given: Any) -> InterchangeBatch:
    batch = token_interchanges(n, equal=True, **given)
    values = torch.linspace(-1.0, 2.0, n, dtype=torch.float64)
    # The first tokens of a base and its source are the same, and so is the whole of one row.
    source = batch.source.clone()
    first = (
        torch.arange(source.shape[1])[None] < (source.shape[1] - batch.base_lengths)[:, None] + 2
    )
    source = torch.where(first, batch.base, source)
    source[1] = batch.base[1]
    places = batch.places.clone()
    places[1, 1] = places[1, 0]
    return replace(batch, source=source, places=places, values=values)


def together(finder: Any, model: Model, batch: InterchangeBatch, sites: Any, **given: Any) -> Fit:
    return finder.fit(model, batch, sites, together=True, progress=SILENT, **given)


# --- the slow version: one full forward a row, and a hook a site ----------------------------------

Made = Callable[[Tensor, Tensor], Tensor]


@contextmanager
def hooked(model: Model, sites: list[Site], made: dict[Site, Any]) -> Iterator[None]:
    """Hooks that put what `made` gives of a site's whole value [pos, d] in its place."""
    d_head = model.decoder.layers[0].attention.out.shape[1]
    gpt2 = hasattr(model.hf, "transformer")
    blocks = model.hf.transformer.h if gpt2 else model.hf.model.layers
    handles = []
    for site in sites:
        block = blocks[site.layer]
        if site.part == "heads":
            mixer = block.attn.c_proj if gpt2 else block.self_attn.o_proj
            [head] = site.heads
            cut = slice(head * d_head, (head + 1) * d_head)

            def before(module: Any, args: Any, site: Site = site, cut: slice = cut) -> Any:
                x = args[0].clone()
                x[0, :, cut] = made[site](x[0, :, cut])
                return (x,)

            handles.append(mixer.register_forward_pre_hook(before))
        else:

            def after(module: Any, args: Any, out: Any, site: Site = site) -> Any:
                x = (out[0] if isinstance(out, tuple) else out).clone()
                x[0] = made[site](x[0])
                return (x, *out[1:]) if isinstance(out, tuple) else x

            handles.append(block.register_forward_hook(after))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def own_tokens(batch: InterchangeBatch, side: str, row: int) -> Tensor:
    return getattr(batch, side)[row][getattr(batch, f"{side}_mask")[row]]


def places(batch: InterchangeBatch, site: Site, row: int) -> tuple[list[int], list[int]]:
    lengths = int(batch.base_mask[row].sum()), int(batch.source_mask[row].sum())
    if site.position == "all":
        return list(range(lengths[0])), list(range(lengths[1]))
    ours, theirs = batch.column(str(site.position))
    begins = batch.base.shape[1] - lengths[0], batch.source.shape[1] - lengths[1]
    return [int(ours[row]) - begins[0]], [int(theirs[row]) - begins[1]]


def hooked_loss(
    model: Model, batch: InterchangeBatch, sites: list[Site], change: dict[Site, Made], loss: str
) -> Tensor:
    """The loss of a batch, row by row, with all sites changed in one forward."""
    assert batch.base_labels is not None and batch.values is not None
    total = torch.zeros((), dtype=torch.float64)
    for row in range(len(batch)):
        label = batch.labels[row][batch.labels[row] != NO_TOKEN]
        sources: dict[Site, Tensor] = {}

        def read(site: Site, kept: dict[Site, Tensor] = sources) -> Any:
            return lambda x: kept.setdefault(site, x.detach().clone())

        with torch.no_grad(), hooked(model, sites, {site: read(site) for site in sites}):
            model.hf(own_tokens(batch, "source", row)[None])

        def put(site: Site, row: int = row, sources: dict[Site, Tensor] = sources) -> Any:
            here, there = places(batch, site, row)

            def of(x: Tensor) -> Tensor:
                return x.index_copy(
                    0, torch.tensor(here), change[site](x[here], sources[site][there])
                )

            return of

        prompt = torch.cat((own_tokens(batch, "base", row), label[:-1]))
        with hooked(model, sites, {site: put(site) for site in sites}):
            logits = model.hf(prompt[None]).logits[0]
        said = logits[-len(label) :]
        if loss == "cross-entropy":
            each = -said.log_softmax(-1)[torch.arange(len(label)), label].sum()
        else:
            difference = said[0, batch.base_labels[row, 0]] - said[0, label[0]]
            each = difference - batch.values[row] if loss == "squared-error" else difference
            each = each**2 if loss == "squared-error" else each
        total = total + each / len(batch)
    return total


def slow(
    finder: Any, model: Model, batch: InterchangeBatch, sites: list[Site], axes: Fit | None
) -> tuple[list[float], dict[Site, list[Tensor]]]:
    """Losses of a training with torch's own optimiser, and the parameters after it."""
    parameters: dict[Site, list[Tensor]] = {}
    groups: list[dict[str, Any]] = []
    progress = [0.0]
    change: dict[Site, Made] = {}
    for site in sites:
        d = site.width(model.decoder)
        generator = torch.Generator().manual_seed(finder.seed)
        basis = random_basis(d, generator, torch.float64)[None]
        size = {"das": (1, d, getattr(finder, "k", 0)), "boundless-das": (1, d, d)}
        raw = torch.zeros(size.get(finder.name, (d,)), dtype=torch.float64, requires_grad=True)
        parameters[site] = [raw]
        groups.append({"params": [raw], "lr": finder.lr})

        if finder.name == "das":

            def das(b: Tensor, s: Tensor, raw: Tensor = raw, basis: Tensor = basis) -> Tensor:
                q = orthonormal(raw, basis)[0]
                return b + (s - b) @ q @ q.T

            change[site] = das
        elif finder.name == "dbm":
            assert axes is not None
            matrix: Any = axes.featurizer(site)

            def dbm(b: Tensor, s: Tensor, raw: Tensor = raw, of: Any = matrix) -> Tensor:
                t = finder.hot + (finder.cold - finder.hot) * progress[0]
                moved = (of.encode(s) - of.encode(b)) * torch.sigmoid(raw[: of.axes.shape[1]] / t)
                return b + moved @ of.axes.T

            change[site] = dbm
        else:
            end = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
            parameters[site].append(end)
            groups.append({"params": [end], "lr": finder.boundary_lr})

            def boundless(
                b: Tensor, s: Tensor, raw: Tensor = raw, basis: Tensor = basis, end: Tensor = end
            ) -> Tensor:
                hot, cold = finder.temperatures(len(basis[0]))
                t = hot + (cold - hot) * progress[0]
                q = orthonormal(raw, basis)[0]
                i = torch.arange(q.shape[0], dtype=torch.float64)
                mask = torch.sigmoid(i / t) * torch.sigmoid((end.clamp(1e-3, 1) * len(i) - i) / t)
                return b + ((s - b) @ q * mask) @ q.T

            change[site] = boundless
    optimiser = torch.optim.Adam(groups)
    losses: list[float] = []
    for step in range(finder.steps):
        progress[0] = step / max(1, finder.steps - 1)
        loss = hooked_loss(model, batch, sites, change, finder.loss)
        penalty = sum(
            (own[1].clamp(1e-3, 1).sum() for own in parameters.values() if len(own) > 1),
            torch.zeros((), dtype=torch.float64),
        )
        optimiser.zero_grad()
        (loss + penalty).backward()
        for own in parameters.values() if finder.name == "das" and step == 0 else ():
            grad = own[0].grad
            assert grad is not None
            grad[:, : grad.shape[2]] = 0  # as every turn within the space is free
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses, parameters


FINDERS = [
    DAS(k=3, steps=4, batch_size=8, lr=0.05, loss="squared-error"),
    DAS(k=2, steps=3, batch_size=8, lr=0.05),
    DBM(steps=4, batch_size=8, lr=0.5, loss="logit-difference"),
    BoundlessDAS(steps=3, batch_size=8, lr=0.02, boundary_lr=0.05, loss="squared-error", hot=4.0),
]


@pytest.mark.few(4)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("finder", FINDERS, ids=lambda each: f"{each.name}-{each.loss}")
def test_a_training_is_that_of_hooked_forwards(finder: Any, family: str) -> None:
    model, batch = made(family), rows(label_tokens=2)
    sites = [load_site(site) for site in ORDER]
    axes = PCA(k=None).fit(model, batch, sites, progress=SILENT) if finder.name == "dbm" else None
    fit = together(finder, model, batch, sites, init=axes)
    with exact_precision(model.hf):
        losses, parameters = slow(finder, model, batch, sites, axes)
    assert fit.together and fit.losses.shape == (finder.steps, len(sites))
    # The turns of boundless DAS have gradients as small as Adam's eps.
    least = ADAM_EPS if finder.name == "boundless-das" else 1e-4
    close = after_steps(finder.steps, max(map(abs, losses)), finder.lr, least)
    for number, site in enumerate(sites):
        assert fit.losses[:, number].tolist() == pytest.approx(losses, rel=0, abs=close)
        raw = parameters[site][0].detach()
        if finder.name == "dbm":
            chosen = fit.features(site).chosen
            assert chosen is not None
            assert torch.equal(chosen, raw[: len(chosen)] > 0)
        else:
            basis = random_basis(raw.shape[1], torch.Generator().manual_seed(0), torch.float64)
            q = orthonormal(raw, basis[None])[0]
            found = fit.directions(site)
            assert float((found - q[:, : found.shape[1]]).abs().max()) < close
    assert abs(losses[-1] - losses[0]) > 1e-4


def test_what_is_measured_is_what_was_trained() -> None:
    """The loss of a further step is that of `intervene` with the features that were found."""
    model, batch = made("llama"), rows()
    das = DAS(k=3, steps=5, batch_size=8, lr=0.1, loss="squared-error")
    fit = together(das, model, batch, SITES)
    out = intervene(model, batch, fit.interchanges())
    difference = out.other_log_probs - out.log_probs
    error = (difference - batch.values) ** 2
    again = together(replace(das, steps=6), model, batch, SITES)
    assert float(again.losses[5, 0]) == pytest.approx(float(error.mean()), abs=1e-10)
    assert torch.equal(again.losses[:5], fit.losses)


def test_one_site_together_is_one_site() -> None:
    model, batch = made("gpt2"), rows()
    for finder in FINDERS:
        alone = finder.fit(model, batch, HEADS[1], progress=SILENT)
        joint = together(finder, model, batch, HEADS[1])
        assert torch.allclose(alone.losses, joint.losses, atol=1e-10)
        assert not alone.together and "together" not in alone.provenance


def test_parts_of_a_batch_and_runs_that_are_made_again_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, batch = made("llama"), rows(7, label_tokens=2)
    das = DAS(k=2, steps=4, batch_size=5, lr=0.05, loss="squared-error", shuffle=True)
    whole = together(das, model, batch, SITES)
    monkeypatch.setattr(joint_training, "STACK_TOKENS", 20)
    monkeypatch.setattr(training_data, "may_be_kept", lambda *given: False)
    parts = together(das, model, batch, SITES)
    assert torch.allclose(whole.losses, parts.losses, atol=1e-10)
    for site in SITES:
        assert torch.allclose(whole.directions(site), parts.directions(site), atol=1e-9)


def test_rows_of_the_same_prompts_have_the_loss_of_the_base_run() -> None:
    model, batch = made("llama"), rows()
    nothing = replace(batch, source=batch.base, source_mask=batch.base_mask)
    nothing = replace(nothing, places=nothing.places[:, :1].expand(-1, 2, -1))
    fit = together(DAS(k=2, steps=3, batch_size=8, loss="squared-error"), model, nothing, SITES)
    base = intervene(model, nothing, {"resid.0@last": Interchange(alpha=0.0)})
    difference = base.other_base_log_probs - base.base_log_probs
    expected = float(((difference - batch.values) ** 2).mean())
    assert fit.losses[:, 0].tolist() == pytest.approx([expected] * 3, abs=1e-10)


def test_gradients_are_added_up_whatever_the_parts() -> None:
    model = made("gpt2")
    batch = model.interchanges(rows(6))
    sites = [load_site(site) for site in SITES]
    data = TrainingData(model, batch, sites, together=True)
    assert data.bundles == ((0,), (1,), (2,), (3,))
    generator = torch.Generator().manual_seed(0)
    rotations: list[Rotation] = []
    for width in data.widths:
        rotation = Rotation(random_basis(width, generator, torch.float64)[None], 1, 2)
        rotation.raw.data.normal_(generator=generator)
        rotations.append(rotation)
    found = joint_gradients(data, rotations, data.step(torch.arange(6)), 0.0, "squared-error")
    before = [each.raw.clone() for each in rotations]
    for number, (site, rotation) in enumerate(zip(sites, rotations, strict=True)):
        move = torch.zeros_like(rotation.raw)
        move[0, 1, 0] = 1e-5
        ends = []
        for sign in (1, -1):
            rotation.raw.data.copy_(before[number] + sign * move)
            step = data.step(torch.arange(6))
            ends.append(float(joint_gradients(data, rotations, step, 0.0, "squared-error")[0]))
        rotation.raw.data.copy_(before[number])
        for each in rotations:
            assert each.raw.grad is not None
        numeric = (ends[0] - ends[1]) / 2e-5
        for each in rotations:
            each.raw.grad = None
        joint_gradients(data, rotations, data.step(torch.arange(6)), 0.0, "squared-error")
        assert rotation.raw.grad is not None
        assert float(rotation.raw.grad[0, 1, 0]) == pytest.approx(numeric, rel=1e-5, abs=1e-8), site
    assert float(found[0]) > 0


def test_stacks_with_squared_errors_are_one_training_after_the_other() -> None:
    model, batch = made("llama"), rows(6, label_tokens=2)
    das = DAS(k=3, steps=10, batch_size=4, lr=0.05, loss="squared-error")
    stack = das.fit(model, batch, SITES, progress=SILENT)
    for number, site in enumerate(SITES):
        alone = das.fit(model, batch, site, progress=SILENT)
        assert float((stack.losses[:, number] - alone.losses[:, 0]).abs().max()) < 1e-10
    # At the first step of whole interchanges, by hand.
    full = DAS(k=model.decoder.d_model, steps=1, batch_size=6, loss="squared-error")
    out = intervene(model, batch, FullVector().fit(model, batch, SITES[3:]).interchanges())
    error = (out.other_log_probs - out.log_probs - batch.values) ** 2
    [loss] = full.fit(model, batch, SITES[3:], progress=SILENT).losses[0].tolist()
    # Labels of two tokens: only the first counts.
    first = replace(batch, labels=batch.labels[:, :1])
    out = intervene(model, first, FullVector().fit(model, batch, SITES[3:]).interchanges())
    error = (out.other_log_probs - out.log_probs - batch.values) ** 2
    assert loss == pytest.approx(float(error.mean()), abs=1e-10)


@pytest.mark.parametrize("missing", ["all", "one", "label"])
def test_squared_errors_need_values(missing: str) -> None:
    model, batch = made("gpt2"), rows(3)
    assert batch.values is not None
    lacking = {
        "all": replace(batch, values=None),
        "one": replace(batch, values=batch.values.index_fill(0, torch.tensor([1]), float("nan"))),
        "label": replace(batch, base_labels=None),
    }[missing]
    said = {
        "all": "das needs what is expected of the logit difference .value. of every row; pair 0",
        "one": "of every row; pair 1 has nothing",
        "label": "das with the loss 'squared-error' needs base_labels",
    }[missing]
    with pytest.raises(BadPairs, match=said):
        DAS(steps=1, loss="squared-error").fit(model, lacking, HEADS, progress=SILENT)


def test_fits_say_that_their_sites_are_meant_together(tmp_path: Path) -> None:
    model, batch = made("gpt2"), rows()
    for finder in (FullVector(), PCA(k=2), DiffInMeans(), DAS(steps=2, batch_size=8)):
        sites = SITES[3:] if finder.name == "diff-in-means" else SITES
        joint = together(finder, model, batch, sites)
        assert joint.together and "together=True" in repr(joint)
        read = Fit.load(joint.save(tmp_path / f"{finder.name}.safetensors"))
        assert read.together and read.sites == joint.sites
        assert not Fit.load(finder.fit(model, batch, sites).save(tmp_path / "alone")).together
    text = (tmp_path / "das.safetensors").read_bytes()
    (tmp_path / "das.safetensors").write_bytes(
        text.replace(b'\\"together\\": true', b'\\"together\\": 9999')
    )
    with pytest.raises(BadFile, match="no file of features"):
        Fit.load(tmp_path / "das.safetensors")


def test_a_step_alone_has_no_part_in_other_sites() -> None:
    """Joint losses hang on all sites' parameters, stacked ones on their own only."""
    model = made("gpt2")
    batch = model.interchanges(rows(4))
    sites = [load_site(site) for site in HEADS]
    generator = torch.Generator().manual_seed(0)
    for joint in (True, False):
        data = TrainingData(model, batch, sites, together=joint)
        trainables = [
            Rotation(random_basis(width, generator, torch.float64)[None], len(bundle), 4)
            for bundle, width in zip(data.bundles, data.widths, strict=True)
        ]
        leave = joint_gradients if joint else step_gradients
        first = leave(data, trainables, data.step(torch.arange(4)), 0.0, "logit-difference")
        with torch.no_grad():
            trainables[0].raw[0].normal_(generator=generator)
        then = leave(data, trainables, data.step(torch.arange(4)), 0.0, "logit-difference")
        assert bool(first[0] != then[0])
        assert bool((first[1:] != then[1:]).all()) == joint


STACKED_TRAINING_SITES = [
    "resid.0@x",
    "resid.1@last",
    "resid.-1@x",
    "heads.1.1,1.3@last",
    "mlp.0@1",
    "resid.1@all",
]
FAMILIES = ["gpt2", "llama", "neox", "gemma2"]


def trained(finder: Any, model: Model, batch: InterchangeBatch, sites: Any, **given: Any) -> Fit:
    return finder.fit(model, batch, sites, progress=SILENT, **given)


@pytest.mark.few(2)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "finder",
    [
        DAS(k=3, steps=20, batch_size=4, lr=0.02, optimizer="adamw"),
        DBM(steps=20, batch_size=4, lr=0.1, l1=0.01),
        BoundlessDAS(steps=20, batch_size=4, schedule="linear", warmup=0.2),
    ],
    ids=lambda finder: finder.name,
)
def test_a_stack_is_one_training_after_the_other(finder: Any, family: str) -> None:
    model, batch = made(family), token_interchanges(6, equal=True, label_tokens=2)
    sites = STACKED_TRAINING_SITES if finder.name == "das" else STACKED_TRAINING_SITES[:4]
    stack = trained(finder, model, batch, sites)
    # The turns of boundless DAS have gradients as small as Adam's eps.
    least = ADAM_EPS if finder.name == "boundless-das" else 1e-4
    close = after_steps(finder.steps, float(stack.losses.abs().max()), finder.lr, least)
    for number, site in enumerate(sites):
        alone = trained(finder, model, batch, [site])
        assert float((stack.losses[:, number] - alone.losses[:, 0]).abs().max()) < close
        ours, theirs = (fit.featurizer(site) for fit in (stack, alone))
        if finder.name == "dbm":
            assert torch.equal(stack.features(site).chosen, alone.features(site).chosen)
        else:
            assert float((ours.vectors - theirs.vectors).abs().max()) < close
    assert bool((stack.losses[-1] != stack.losses[0]).any())


def hooked_losses(
    model: Model, batch: InterchangeBatch, site: Any, das: DAS, steps: int
) -> list[float]:
    """The slow obvious version: full Hugging Face forwards, row by row, with a hook, torch's own
    optimiser on the same parametrization.
    """
    d = model.decoder.d_model
    generator = torch.Generator().manual_seed(das.seed)
    basis = random_basis(d, generator, torch.float64)[None]
    raw = torch.zeros(1, d, das.k, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([raw], lr=das.lr)
    block = model.hf.model.layers[site.layer]
    columns = batch.column(str(site.position))

    def prompt(row: int, side: str) -> tuple[torch.Tensor, int]:
        table, mask = getattr(batch, side), getattr(batch, f"{side}_mask")
        begin = table.shape[1] - int(mask[row].sum())
        own = table[row][mask[row]]
        return own, int(columns[side == "source"][row]) - begin

    losses = []
    for _ in range(steps):
        total = torch.zeros((), dtype=torch.float64)
        for row in range(len(batch)):
            label = batch.labels[row][batch.labels[row] != NO_TOKEN]
            source, there = prompt(row, "source")
            base, here = prompt(row, "base")
            with torch.no_grad():
                states = model.hf(source[None], output_hidden_states=True).hidden_states
            vector = states[site.layer + 1][0, there]

            def hook(module: Any, args: Any, out: Any, v: Any = vector, at: int = here) -> Any:
                x = (out[0] if isinstance(out, tuple) else out).clone()
                q = orthonormal(raw, basis)[0]
                x[0, at] = x[0, at] + (v - x[0, at]) @ q @ q.T
                return (x, *out[1:]) if isinstance(out, tuple) else x

            handle = block.register_forward_hook(hook)
            logits = model.hf(torch.cat((base, label[:-1]))[None]).logits[0].double()
            handle.remove()
            logp = logits[-len(label) :].log_softmax(-1)
            total = total - logp[torch.arange(len(label)), label].sum() / len(batch)
        optimiser.zero_grad()
        total.backward()
        optimiser.step()
        losses.append(float(total.detach()))
    return losses


def test_losses_are_those_of_hooked_forwards_row_by_row() -> None:
    model, batch = made("llama"), token_interchanges(4, label_tokens=3)
    das = DAS(k=2, steps=3, batch_size=4, lr=0.05)
    fit = trained(das, model, batch, ["resid.0@x"])
    theirs = hooked_losses(model, batch, load_site("resid.0@x"), das, 3)
    # Hugging Face's RMSNorm rounds to fp32.
    assert fit.losses[:, 0].tolist() == pytest.approx(theirs, abs=2e-5)


def test_runs_that_are_made_again_give_the_same_as_runs_that_are_kept() -> None:
    model = made("llama")
    batch = model.interchanges(token_interchanges(7, label_tokens=2))
    sites = [load_site(site) for site in STACKED_TRAINING_SITES[:5]]
    rows = torch.tensor([5, 0, 3])
    losses, gradients = [], []
    for keep in (True, False):
        data = TrainingData(model, batch, sites, keep=keep)
        generator = torch.Generator().manual_seed(0)
        rotations = []
        for bundle, width in zip(data.bundles, data.widths, strict=True):
            basis = random_basis(width, generator, torch.float64)[None]
            rotation = Rotation(basis, len(bundle), 2)
            noise = torch.randn(rotation.raw.shape, generator=generator, dtype=torch.float64)
            rotation.raw.data.copy_(noise)
            rotations.append(rotation)
        losses.append(step_gradients(data, rotations, data.step(rows), 0.0, "cross-entropy"))
        gradients.append([each.raw.grad for each in rotations])
    assert torch.allclose(losses[0], losses[1], atol=1e-12)
    for ours, theirs in zip(*gradients, strict=True):
        assert float(ours.abs().max()) > 1e-4
        assert torch.allclose(ours, theirs, atol=1e-12)


def test_rows_shorter_than_labels_of_other_rows_are_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = made("gpt2")
    labels = [[1, 2, 3, 4, 5], [9], [2]]
    batch = InterchangeBatch.from_tokens([[3], [4], [5]], [[6], [7], [8]], labels)
    das = DAS(epochs=2, batch_size=1, lr=0.1)
    kept = das.fit(model, batch, ["resid.0@last"], progress=SILENT)
    monkeypatch.setattr(training_data, "may_be_kept", lambda *args: False)
    again = das.fit(model, batch, ["resid.0@last"], progress=SILENT)
    torch.testing.assert_close(again.losses, kept.losses, rtol=0, atol=1e-12)


def test_stacks_cut_over_sites_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = made("neox"), token_interchanges(5)
    das = DAS(k=2, steps=3, batch_size=5)
    whole = trained(das, model, batch, STACKED_TRAINING_SITES[:5])
    monkeypatch.setattr(stacked_training, "STACK_TOKENS", 1)
    cut = trained(das, model, batch, STACKED_TRAINING_SITES[:5])
    assert torch.allclose(whole.losses, cut.losses, atol=1e-12)


def test_a_site_that_nothing_reads_stays_as_it_began() -> None:
    model, batch = made("gpt2"), token_interchanges(4)
    fit = trained(DAS(k=2, steps=4, batch_size=4), model, batch, ["resid.2@x", "resid.0@x"])
    assert len(set(fit.losses[:, 0].tolist())) == 1
    basis = random_basis(32, torch.Generator().manual_seed(0), torch.float64)
    assert torch.equal(fit.directions("resid.2@x"), basis[:, :2])
    assert len(set(fit.losses[:, 1].tolist())) == 4


def test_the_loss_of_a_label_is_the_sum_over_its_tokens() -> None:
    """All of the final stream of the last token exchanged: the source's own prediction."""
    model = made("llama")
    batch = token_interchanges(3)
    d = model.decoder.d_model
    fit = trained(DAS(k=d, steps=1, batch_size=3), model, batch, ["resid.2@last"])
    decoder = model.decoder
    ctx = decoder.context(batch.source_mask)
    from mechassay.models.forward import trace

    final = trace(decoder, decoder.embed(batch.source), ctx).final[:, -1]
    logp = decoder.readout(final).all().log_softmax(-1)
    expected = -logp.gather(1, batch.labels).mean()
    assert float(fit.losses[0, 0]) == pytest.approx(float(expected), abs=1e-10)


def test_the_logit_difference_is_a_loss() -> None:
    model, batch = made("llama"), token_interchanges(4, label_tokens=2)
    das = DAS(k=32, steps=1, batch_size=4, loss="logit-difference")
    fit = trained(das, model, batch, ["resid.2@last"])
    from mechassay.models.forward import trace

    decoder = model.decoder
    final = trace(decoder, decoder.embed(batch.source), decoder.context(batch.source_mask)).final
    logits = decoder.readout(final[:, -1]).all()
    assert batch.base_labels is not None
    by_hand = logits.gather(1, batch.base_labels[:, :1]) - logits.gather(1, batch.labels[:, :1])
    assert float(fit.losses[0, 0]) == pytest.approx(float(by_hand.mean()), abs=1e-10)
    descending = DAS(k=4, steps=30, batch_size=4, lr=0.05, loss="logit-difference")
    losses = trained(descending, model, batch, ["resid.1@last"]).losses
    assert float(losses[-1]) < float(losses[0]) - 0.1
    unlabelled = InterchangeBatch.from_tokens(base=[[1, 2]], source=[[3, 4]], labels=[5])
    with pytest.raises(BadPairs, match="das with the loss .logit-difference. needs base_labels"):
        trained(das, model, unlabelled, ["resid.0@last"])


def test_batches_are_walked_in_order_or_in_an_order_drawn_from_a_seed() -> None:
    assert [rows.tolist() for rows in TrainingPlan(5, 2, 5).rows()] == [
        [0, 1],
        [2, 3],
        [4],
        [0, 1],
        [2, 3],
    ]
    shuffled = [rows.tolist() for rows in TrainingPlan(5, 2, 6, shuffle=1).rows()]
    for epoch in (shuffled[:3], shuffled[3:]):
        assert sorted(row for batch in epoch for row in batch) == [0, 1, 2, 3, 4]
    assert shuffled[:3] != shuffled[3:]
    assert shuffled == [rows.tolist() for rows in TrainingPlan(5, 2, 6, shuffle=1).rows()]


def test_learning_rates() -> None:
    constant = TrainingPlan(8, 4, 10)
    assert [constant.factor(step) for step in range(10)] == [1.0] * 10
    causalgym = DAS.profile("causalgym-2024").plan(400)
    assert causalgym.steps == 100 and causalgym.size == 4
    rates = [causalgym.factor(step) for step in range(100)]
    assert rates[0] == 0.0 and rates[5] == 0.5 and rates[10] == 1.0
    assert rates[55] == pytest.approx(0.5) and rates[99] == pytest.approx(1 / 90)
    assert DAS(epochs=3, batch_size=4).plan(10).steps == 9
    assert DAS(batch_size=4).plan(10).steps == 100


def test_an_interrupted_training_goes_on_bit_for_bit(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = made("llama"), token_interchanges(5)
    das = DAS(k=2, steps=6, batch_size=2, shuffle=True)
    whole = trained(das, model, batch, STACKED_TRAINING_SITES[:2])
    path, calls, real = tmp_path / "das", [], step_gradients

    def stopping(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(stacked_training, "step_gradients", stopping)
    monkeypatch.setattr("mechassay.utils.checkpoint.EVERY_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        trained(das, model, batch, STACKED_TRAINING_SITES[:2], checkpoint=path)
    assert path.exists()
    resumed = trained(das, model, batch, STACKED_TRAINING_SITES[:2], checkpoint=path)
    assert len(calls) == 4 + 3
    assert torch.equal(resumed.losses, whole.losses)
    assert torch.equal(
        resumed.directions(STACKED_TRAINING_SITES[0]), whole.directions(STACKED_TRAINING_SITES[0])
    )


def test_bfloat16_models_are_trained_in_fp32() -> None:
    model = make_model(tiny.build("llama", torch.bfloat16))
    fit = trained(
        DAS(k=2, steps=3, batch_size=4), model, token_interchanges(4), STACKED_TRAINING_SITES[:2]
    )
    assert fit.directions(STACKED_TRAINING_SITES[0]).dtype == torch.float32
    assert bool(torch.isfinite(fit.losses).all())


def test_gradients_flow_under_no_grad_and_not_under_inference_mode() -> None:
    model, batch = made("llama"), token_interchanges(4)
    das = DAS(k=2, steps=3, batch_size=4)
    with torch.no_grad():
        fit = trained(das, model, batch, STACKED_TRAINING_SITES[:1])
    assert torch.equal(fit.losses, trained(das, model, batch, STACKED_TRAINING_SITES[:1]).losses)
    with torch.inference_mode(), pytest.raises(BadUsage, match="das needs gradients"):
        trained(das, model, batch, STACKED_TRAINING_SITES[:1])


def test_mistakes_are_one_line() -> None:
    model, batch = made("llama"), token_interchanges(4)
    d = model.decoder.d_model
    das = DAS(k=2, steps=1, batch_size=4)

    def refused(kind: type, match: str, finder: Any = das, sites: Any = "resid.0@x", **given: Any):
        with pytest.raises(kind, match=match) as error:
            trained(finder, model, batch, sites, **given)
        assert "\n" not in str(error.value)

    refused(BadUsage, r"das at resid.0@x has 32 dimensions, so k is 1 to 32; got 33", DAS(k=33))
    refused(BadUsage, "Site resid.7@last: .* has layers -1 to 2; got 7", sites="resid.7@last")
    refused(UnknownName, "Unknown column 'y'. .*Known: last, x", sites="resid.0@y")
    refused(BadPairs, "Pair 0: its base has tokens 0 to 4; got position 5", sites="resid.0@5")
    refused(BadPairs, "Pair 0: site resid.0@all needs prompts of equal length", sites="resid.0@all")
    refused(BadUsage, "every site once; resid.0@x is given twice", sites=["resid.0@x"] * 2)
    refused(BadUsage, "at least one site", sites=[])
    init: dict[Any, Any] = {"resid.0@x": torch.eye(d)[:, :4]}
    refused(BadUsage, r"das at resid.0@x needs an initial basis of shape \(32, 32\)", init=init)
    refused(BadUsage, "orthonormal initial basis", init={"resid.0@x": 2 * torch.eye(d)})
    refused(BadUsage, "not among the 1 sites", init={"resid.1@x": torch.eye(d)})
    pca = trained(PCA(k=2), model, batch, "resid.0@x")
    refused(BadUsage, "init at resid.0@x is a PrincipalAxes", init=pca)
    refused(BadUsage, "pca trains nothing", PCA(), init=pca)
    heads = trained(PCA(k=2), model, batch, "heads.0.1@x").featurizers
    wrong = {"resid.0@x": next(iter(heads.values()))}
    refused(BadUsage, "PrincipalAxes that init has for resid.0@x does not fit", DBM(), init=wrong)
    for settings, match in (
        ({"steps": 2, "epochs": 1}, "steps or epochs"),
        ({"steps": 0}, "steps of at least 1"),
        ({"lr": 0.0}, "lr above 0"),
        ({"optimizer": "sgd"}, "Unknown optimizer of das 'sgd'"),
        ({"warmup": 1.5}, "warmup of at least 0 and below 1"),
    ):
        with pytest.raises(BadUsage, match=match):
            DAS(**settings)
    with pytest.raises(UnknownName, match="Did you mean 'causalgym-2024'"):
        DAS.profile("causalgym")


def test_a_loss_that_is_not_a_number_names_its_site() -> None:
    model = made("llama")
    batch = model.interchanges(token_interchanges(4))
    data = TrainingData(model, batch, [load_site("resid.0@x"), load_site("resid.1@x")])
    rotation = Rotation(random_basis(32, torch.Generator(), torch.float64)[None], 2, 1)
    rotation.raw.data[1] = torch.nan
    with pytest.raises(NonFinite, match="The loss at resid.1@x is NaN or infinite in step 0"):
        train(
            data,
            [rotation],
            TrainingPlan(4, 4, 1),
            lr=0.1,
            optimizer="adam",
            weight_decay=0.0,
            loss="cross-entropy",
            advance=lambda n: None,
        )


# --- how far a training is ------------------------------------------------------------------------


def test_how_much_a_loss_still_falls_by_hand() -> None:
    # Eight steps of one epoch. The line through 4, 4, 2, 2 has a slope of -.8, so that it falls by
    # 1.6 in two steps; the last quarter has a mean of 2.
    losses = np.array([9.0, 8, 7, 6, 4, 4, 2, 2])
    fall = fall_of(losses, 8)
    assert fall.value == pytest.approx(1.6 / 2)
    # Residuals -.2, .6, -.6, .2 have a variance of .4 with two degrees of freedom.
    wide = 2.919986 * math.sqrt(0.4 / 5) * 2 / 2
    assert (fall.low, fall.high) == pytest.approx((0.8 - wide, 0.8 + wide), abs=1e-5)
    assert still_falling(losses, 8)
    assert not still_falling(np.full(8, 2.0), 8), "a loss that stays"
    assert still_falling(losses[:7], 7) and math.isnan(fall_of(losses[:7], 7).high)


@given(st.floats(0.1, 1e3), st.integers(1, 4), st.integers(0, 9))
def test_neither_units_nor_the_order_within_epochs_matter(
    unit: float, size: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    epochs = rng.uniform(0.5, 2.0, size=(16, size))
    fall = fall_of(epochs.reshape(-1), size)
    shuffled = rng.permuted(epochs, axis=1).reshape(-1)
    for other in (fall_of(unit * epochs.reshape(-1), size), fall_of(shuffled, size)):
        assert (other.value, other.high) == pytest.approx((fall.value, fall.high))


def test_the_line_is_that_of_scipy() -> None:
    rng = np.random.default_rng(3)
    for n in (8, 11, 40):
        losses = np.exp(-np.arange(n) / n) + 0.1 * rng.standard_normal(n)
        half, last = losses[n // 2 :], losses[n - n // 4 :].mean()
        line = linregress(np.arange(len(half)), half)
        wide = t_distribution.ppf(0.95, len(half) - 2) * line.stderr
        fall = fall_of(losses, n)
        ends = [-(line.slope + side * wide) * n / 4 / last for side in (0, 1, -1)]
        assert (fall.value, fall.low, fall.high) == pytest.approx(ends)


@pytest.mark.parametrize("start", [1.0, 100.0])
def test_a_straight_fall_is_cut_short_however_small_and_an_ended_one_is_not(start: float) -> None:
    steps = np.arange(100)
    straight = start - 1e-3 * steps
    assert still_falling(straight, 100), "a small learning rate"
    # A quarter of the steps, of what lies between the middles of the first tenth and last quarter.
    share = 25 / (87 - 4.5)
    fall = fall_of(straight, 100)
    assert fall.value * straight[-25:].mean() / (straight[:10].mean() - straight[-25:].mean()) == (
        pytest.approx(share)
    )
    assert share == pytest.approx(0.3, abs=0.005)
    assert not still_falling(start * (1 + np.exp(-steps / 10)), 100)


def test_a_training_cut_short_still_falls_and_a_long_one_has_levelled_off() -> None:
    model, batch = made("gpt2"), token_interchanges(8, label_tokens=1)
    das = DAS(k=2, batch_size=8, lr=0.05)
    for steps, falls in ((6, True), (12, True), (60, False)):
        losses = trained(replace(das, steps=steps), model, batch, ["resid.0@x"]).losses[:, 0]
        assert still_falling(losses.numpy(), 1) == falls, steps


# --- masks ----------------------------------------------------------------------------------------


def test_temperatures_of_mibs_code_by_hand() -> None:
    """linspace(1, .01, steps + 1), of which a step takes number max(1, step)."""
    for steps in (1, 2, 12):
        plan = DBM(steps=steps, cooling="mib-2025").plan(8)
        taken = [1 + (0.01 - 1) * plan.progress(step) for step in range(steps)]
        every = np.linspace(1, 0.01, steps + 1)
        assert taken == pytest.approx([every[max(1, step)] for step in range(steps)])
    assert DBM.profile("mib-2025").cooling == "mib-2025" and DBM.profile("mib-2025").shuffle
    with pytest.raises(UnknownName, match="cooling"):
        DBM(cooling="slow")


def test_masks_as_mibs_code_trains_them_are_those_of_an_own_loop() -> None:
    model, batch = made("gpt2"), rows(label_tokens=1)
    dbm = DBM.profile("mib-2025", batch_size=3, epochs=2, lr=0.3, seed=4)
    site = load_site(ORDER[0])
    fit = trained(dbm, model, batch, [site])
    mask = torch.zeros(site.width(model.decoder), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.AdamW([mask], lr=0.3, weight_decay=0.0)
    plan = dbm.plan(len(batch))
    order = torch.Generator().manual_seed(4)
    losses: list[float] = []
    temperatures = torch.linspace(1, 0.01, plan.steps + 1, dtype=torch.float64)
    with exact_precision(model.hf):
        for step in range(plan.steps):
            if step % plan.batches == 0:
                rows_of_epoch = torch.randperm(len(batch), generator=order)
            begin = step % plan.batches * 3
            some = batch.select(rows_of_epoch[begin : begin + 3].tolist())
            gate = torch.sigmoid(mask / temperatures[max(1, step)])
            change: dict[Site, Made] = {site: lambda b, s, g=gate: b + g * (s - b)}
            loss = hooked_loss(model, some, [site], change, "cross-entropy")
            losses.append(float(loss.detach()))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    assert fit.losses[:, 0].tolist() == pytest.approx(losses, rel=0, abs=1e-9)
    assert torch.equal(fit.features(site).chosen, mask.detach() > 0)


def test_temperatures_of_boundless_das_are_in_proportion_to_the_width() -> None:
    assert BoundlessDAS().temperatures(4096) == (50.0, 0.1)
    assert BoundlessDAS().temperatures(32) == pytest.approx((50 / 128, 0.1 / 128))
    assert BoundlessDAS(hot=4.0).temperatures(32) == pytest.approx((4.0, 0.1 / 128))
    assert BoundlessDAS.profile("paper").temperatures(32) == (50.0, 0.1)
    with pytest.raises(BadUsage, match="cools from hot to cold"):
        BoundlessDAS(hot=0.01)


def test_a_mask_that_decides_nothing_or_keeps_everything_is_said() -> None:
    half, sharp = torch.full((40,), 0.5), torch.tensor([0.0, 1.0] * 20)
    assert "never became sharp: 40 of 40 features" in mask_warning(half, 20, 40)
    assert mask_warning(sharp, 20, 40) == ""
    assert "this is the full vector" in mask_warning(torch.ones(40), 40, 40)
    assert mask_warning(torch.tensor([0.5, 0.5, *[1.0] * 38]), 39, 40) == "", "5 % may be open"
    model, batch = made("gpt2"), token_interchanges(6, label_tokens=1)
    open_mask = DBM(steps=2, batch_size=6, lr=1e-6, cold=1.0)
    assert "never became sharp" in said_of(trained(open_mask, model, batch, ["resid.0@x"]))
    flat = BoundlessDAS(steps=3, batch_size=6, hot=50.0, cold=50.0)
    assert "never became sharp" in said_of(trained(flat, model, batch, ["resid.0@x"]))
    sharp_one = BoundlessDAS(steps=3, batch_size=6)
    assert not trained(sharp_one, model, batch, ["resid.0@x"]).provenance.get("warnings")


def said_of(fit: Fit) -> str:
    """The warning of the only site of a fit."""
    (warning,) = fit.provenance["warnings"].values()
    return warning
