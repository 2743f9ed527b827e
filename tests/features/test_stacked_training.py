"""Stacks are trainings of single sites, on hooked full forwards; what is read and how it is cut."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from interchanges_made import token_interchanges
from mechassay.errors import BadPairs, BadUsage, NonFinite, UnknownName
from mechassay.features import DAS, DBM, PCA, BoundlessDAS, Fit, stacked_training, training_data
from mechassay.features.das import Rotation
from mechassay.features.directions import orthonormal, random_basis
from mechassay.features.stacked_training import TrainingPlan, step_gradients, train
from mechassay.features.training_data import TrainingData
from mechassay.interchange import InterchangeBatch
from mechassay.interventions.site import load_site
from mechassay.models.model import Model, make_model
from mechassay.pairs import NO_TOKEN
from mechassay.progress import SILENT
from mechassay.testing import tiny
from rounding import ADAM_EPS, after_steps

SITES = ["resid.0@x", "resid.1@last", "resid.-1@x", "heads.1.1,1.3@last", "mlp.0@1", "resid.1@all"]
FAMILIES = ["gpt2", "llama", "neox", "gemma2"]


def made(family: str) -> Model:
    return make_model(tiny.build(family, torch.float64))


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
    sites = SITES if finder.name == "das" else SITES[:4]
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
    sites = [load_site(site) for site in SITES[:5]]
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
    whole = trained(das, model, batch, SITES[:5])
    monkeypatch.setattr(stacked_training, "STACK_TOKENS", 1)
    cut = trained(das, model, batch, SITES[:5])
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
    from mechassay.models.trace import trace

    final = trace(decoder, decoder.embed(batch.source), ctx).final[:, -1]
    logp = decoder.readout(final).all().log_softmax(-1)
    expected = -logp.gather(1, batch.labels).mean()
    assert float(fit.losses[0, 0]) == pytest.approx(float(expected), abs=1e-10)


def test_the_logit_difference_is_a_loss() -> None:
    model, batch = made("llama"), token_interchanges(4, label_tokens=2)
    das = DAS(k=32, steps=1, batch_size=4, loss="logit-difference")
    fit = trained(das, model, batch, ["resid.2@last"])
    from mechassay.models.trace import trace

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
    whole = trained(das, model, batch, SITES[:2])
    path, calls, real = tmp_path / "das", [], step_gradients

    def stopping(*given: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(stacked_training, "step_gradients", stopping)
    monkeypatch.setattr("mechassay.checkpoint.EVERY_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        trained(das, model, batch, SITES[:2], checkpoint=path)
    assert path.exists()
    resumed = trained(das, model, batch, SITES[:2], checkpoint=path)
    assert len(calls) == 4 + 3
    assert torch.equal(resumed.losses, whole.losses)
    assert torch.equal(resumed.directions(SITES[0]), whole.directions(SITES[0]))


def test_bfloat16_models_are_trained_in_fp32() -> None:
    model = make_model(tiny.build("llama", torch.bfloat16))
    fit = trained(DAS(k=2, steps=3, batch_size=4), model, token_interchanges(4), SITES[:2])
    assert fit.directions(SITES[0]).dtype == torch.float32
    assert bool(torch.isfinite(fit.losses).all())


def test_gradients_flow_under_no_grad_and_not_under_inference_mode() -> None:
    model, batch = made("llama"), token_interchanges(4)
    das = DAS(k=2, steps=3, batch_size=4)
    with torch.no_grad():
        fit = trained(das, model, batch, SITES[:1])
    assert torch.equal(fit.losses, trained(das, model, batch, SITES[:1]).losses)
    with torch.inference_mode(), pytest.raises(BadUsage, match="das needs gradients"):
        trained(das, model, batch, SITES[:1])


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
        ({"lr": 0.0}, "learning rate above 0"),
        ({"optimizer": "sgd"}, "Unknown optimizer 'sgd'"),
        ({"warmup": 1.5}, "warms up"),
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
