"""KL by an entropy, a product and a streamed logsumexp:
against two log-softmaxes of the original model's logits.

The file of divergences: what is written comes back, and nothing else is read.

The worst pairs: which they are, and that running one alone finds a wrong stored value.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from torch import Tensor

from helpers.hooks_reference import exact_precision
from helpers.models import families
from mechassay.adversarial import divergence as module
from mechassay.adversarial.divergence import (
    DivergenceFile,
    Target,
    Tolerance,
    WorstCase,
    cases_at,
    disagreements,
    divergence,
    divergences_from,
    largest,
)
from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.pools import Pool, draw_pools
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.ablation import ablate, ablated_values
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.methods.random import Random
from mechassay.errors import BadFile, BadUsage
from mechassay.models.decoder import Decoder, Readout
from mechassay.models.forward import Constants, trace
from mechassay.models.model import Model
from mechassay.prompts.batch import Batch
from mechassay.stats.bounds import PartialGrid
from mechassay.testing.tiny import VOCABULARY, subject
from mechassay.truth.ground_truth import Truth
from mechassay.utils.display import SILENT

FAMILIES = families(["gpt2", "neox", "llama", "qwen3", "gemma2", "gemma3"])


def plain(p: Tensor, q: Tensor) -> Tensor:
    """KL of softmax(p) from softmax(q), in fp64."""
    logp, logq = p.double().log_softmax(-1), q.double().log_softmax(-1)
    return (logp.exp() * (logp - logq)).sum(-1)


def readouts(model: Model, n: int = 5) -> tuple[Tensor, Tensor, Readout, Readout]:
    """Two batches of prompts, and the decoder's readouts of them."""
    tokens = torch.randint(0, VOCABULARY, (2, n, 6), generator=torch.Generator().manual_seed(2))
    ctx = model.decoder.context(torch.ones(n, 6, dtype=torch.bool))
    p, q = (
        trace(model.decoder, model.decoder.embed(each), ctx).readout(model.decoder)
        for each in tokens
    )
    return tokens[0], tokens[1], p, q


def with_bias(decoder: Decoder, shift: float = 0.0) -> Decoder:
    bias = (
        torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        + shift
    )
    return replace(decoder, unembed_bias=bias.to(decoder.unembedding))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("block", [8192, 96, 10])
def test_the_originals_two_log_softmaxes(
    family: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    model = subject(family, torch.float64).model
    a, b, p, q = readouts(model)
    with exact_precision(model.hf), torch.no_grad():
        wanted = plain(
            model.hf(a, use_cache=False).logits[:, -1], model.hf(b, use_cache=False).logits[:, -1]
        )
    found = divergence(Target.of(p), q)
    assert found.dtype == torch.float64 and float(wanted.min()) > 1e-3
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
    torch.testing.assert_close(
        divergence(Target.of(p), p), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_biases_and_soft_caps(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 10)
    *_, p, q = readouts(subject(family, torch.float64).model)
    p, q = (Readout(each.hidden, with_bias(each.decoder)) for each in (p, q))
    found = divergence(Target.of(p), q)
    torch.testing.assert_close(found, plain(p.all(), q.all()), rtol=0, atol=1e-9)
    plain_model = divergence(Target.of(Readout(p.hidden, replace(p.decoder, unembed_bias=None))), q)
    assert float((found - plain_model).abs().min()) > 1e-6  # so the bias did count


def test_the_same_whatever_is_added_to_all_logits() -> None:
    *_, p, q = readouts(subject("gpt2", torch.float64).model)
    one, other = (
        divergence(
            Target.of(Readout(p.hidden, with_bias(p.decoder, shift))),
            Readout(q.hidden, with_bias(q.decoder, shift)),
        )
        for shift in (0.0, -100.0)
    )
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_one_product_for_many(family: str) -> None:
    *_, p, q = readouts(subject(family, torch.float64).model)
    found = divergences_from(Target.of(p), q.all().log_softmax(-1)[:3])
    wanted = torch.stack([plain(p.all(), q.all()[j].expand(5, -1)) for j in range(3)], dim=1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


def coins(*shares: float, dtype: torch.dtype = torch.float64) -> Readout:
    """A model of two words: hidden vectors are its logits, log q and log (1 - q)."""
    decoder = subject("gpt2", dtype).model.decoder
    decoder = replace(
        decoder,
        unembedding=torch.eye(2, decoder.d_model, dtype=dtype),
        embedding=torch.eye(2, decoder.d_model, dtype=dtype),
    )
    hidden = torch.zeros(len(shares), decoder.d_model, dtype=dtype)
    hidden[:, :2] = torch.tensor([[math.log(q), math.log(1 - q)] for q in shares], dtype=dtype) + 7
    return Readout(hidden, decoder)


def test_two_coins_by_hand() -> None:
    found = divergence(Target.of(coins(0.5, 0.5, 0.9)), coins(0.25, 0.5, 0.1))
    wanted = [0.5 * math.log(2) + 0.5 * math.log(2 / 3), 0.0, 0.9 * math.log(9) - 0.1 * math.log(9)]
    assert found.tolist() == pytest.approx(wanted, abs=1e-12)


def test_logits_of_thousands_do_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 10)
    *_, p, q = readouts(subject("gpt2").model)
    p, q = (Readout(each.hidden * 3000, each.decoder) for each in (p, q))
    found, wanted = divergence(Target.of(p), q), plain(p.all(), q.all())
    assert float(wanted.max()) > 1000
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_fp32_is_fp64_to_rounding(family: str) -> None:
    found = []
    for dtype in (torch.float32, torch.float64):
        *_, p, q = readouts(subject(family, dtype).model)
        found.append(divergence(Target.of(p), q))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_rounded_logits_are_compared_as_they_are(
    family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", 10)
    *_, p, q = readouts(subject(family, dtype).model)
    p, q = (Readout(each.hidden * 4, each.decoder) for each in (p, q))
    target = Target.of(p)
    torch.testing.assert_close(divergence(target, q), plain(p.all(), q.all()), rtol=0, atol=1e-4)
    # A circuit that is the model has its logits, rounded alike: nothing of their rounding may show.
    assert float(divergence(target, p).abs().max()) < 1e-5


def test_the_rounding_of_large_logits_cancels() -> None:
    """Logits of thousands have errors of 1e-4 in fp32;
    a distribution must not diverge from itself for that.
    """
    decoder = replace(subject("gpt2", torch.float32).model.decoder, unembed_bias=None)
    decoder = replace(decoder, unembedding=decoder.unembedding + 30.0)
    readout = Readout(
        torch.randn(16, decoder.d_model, generator=torch.Generator().manual_seed(0)) + 5, decoder
    )
    target = Target.of(readout)
    assert float(divergence(target, readout).abs().max()) < 2e-6
    # The shortcut by W^T p does not see the rounded logits.
    shortcut = ((target.p @ decoder.unembedding) * readout.hidden).sum(dim=-1) - (
        target.p * readout.all()
    ).sum(dim=-1)
    assert float(shortcut.abs().max()) > 1e-4


def test_agreement_is_absolute_for_small_values_and_relative_for_large_ones() -> None:
    allowed = Tolerance.of(torch.float32)
    a = np.array([0.0, 0.0, 10.0, 10.0, math.nan])
    b = np.array([0.9e-4, 1.2e-4, 10.009, 10.02, math.nan])
    assert allowed.holds(a, b).tolist() == [True, False, True, False, False]
    assert Tolerance.of(torch.bfloat16).absolute > allowed.absolute


def test_values_come_back_from_their_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    grid = DivergenceFile(
        ("one", "two"),
        rng.normal(size=(2, 300, 4)).astype(np.float32),
        rng.normal(size=(300, 4)).astype(np.float32),
    )
    for number in range(2):
        grid.save(tmp_path / f"{number}.parquet")
    assert (tmp_path / "0.parquet").read_bytes() == (tmp_path / "1.parquet").read_bytes()
    back = DivergenceFile.load(tmp_path / "0.parquet", ("two", "one"))
    assert (
        np.array_equal(back.circuits, grid.circuits[::-1])
        and np.array_equal(back.corrupted, grid.corrupted)
        and back.paired
    )
    table = pyarrow.parquet.read_table(tmp_path / "0.parquet")
    assert [str(field.type) for field in table.schema][:2] == ["uint16", "uint8"]
    assert table["clean"].to_pylist()[:9] == [0, 0, 0, 0, 1, 1, 1, 1, 2] and table[
        "corrupted"
    ].to_pylist()[:5] == [0, 1, 2, 3, 0]
    alone = DivergenceFile(("one",), grid.circuits[:1, :, 0], grid.corrupted[:, 0], paired=False)
    alone.save(tmp_path / "alone.parquet")
    assert not DivergenceFile.load(tmp_path / "alone.parquet", ("one",)).paired
    with pytest.raises(BadFile, match="not a file of divergences of three"):
        DivergenceFile.load(tmp_path / "0.parquet", ("three",))
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "0.parquet").read_bytes()[:100])
    with pytest.raises(BadFile, match="cut.parquet: not a file of divergences"):
        DivergenceFile.load(tmp_path / "cut.parquet", ("one",))


def test_the_file_has_the_pairs_of_the_part_alone(tmp_path: Path) -> None:
    part = PartialGrid.of("aab", "abba")
    values = np.where(part.mask, np.arange(12.0).reshape(3, 4), np.nan).astype(np.float32)
    DivergenceFile(("one",), values[None] + 1, values).save(tmp_path / "v.parquet")
    back = DivergenceFile.load(tmp_path / "v.parquet", ["one"])
    np.testing.assert_array_equal(back.corrupted, values)
    np.testing.assert_array_equal(back.circuits[0], values + 1)
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(tmp_path / "v.parquet")
    assert list(zip(table["clean"].to_pylist(), table["corrupted"].to_pylist(), strict=True)) == [
        (0, 0),
        (0, 3),
        (1, 0),
        (1, 3),
        (2, 1),
        (2, 2),
    ]
    smaller = table.replace_schema_metadata({"shape": "2,4"})
    pyarrow.parquet.write_table(smaller, tmp_path / "w.parquet")
    with pytest.raises(BadFile, match="not a file of divergences"):
        DivergenceFile.load(tmp_path / "w.parquet", ["one"])


@pytest.fixture(scope="module")
def pools(truth: Truth) -> tuple[Pool, Pool]:
    return draw_pools(truth.model, truth.task, 9, 7)


@pytest.fixture(scope="module")
def circuit(truth: Truth) -> Circuit:
    return Random(seed=1).draw(truth.model.graph).top(0.5)


@pytest.fixture(scope="module")
def grid(truth: Truth, circuit: Circuit, pools: tuple[Pool, Pool]) -> np.ndarray:
    return evaluate_pairs(truth.model, [circuit], *pools, progress=SILENT).circuits[0]


def worst_cases(
    model: Model,
    circuit: Circuit,
    clean: Pool,
    corrupted: Pool,
    values: np.ndarray,
    k: int,
    ablated: Constants | None = None,
) -> tuple[WorstCase, ...]:
    places = largest(values.reshape(-1), k)
    return cases_at(model, circuit, clean, corrupted, values, places, ablated=ablated)


def test_the_largest_come_first_and_ties_by_place() -> None:
    values = np.array([2.0, 5.0, 1.0, 5.0, 2.0, math.nan, 2.0])
    assert largest(values, 5).tolist() == [1, 3, 0, 4, 6]
    assert largest(values, 4).tolist() == [1, 3, 0, 4]
    # NaN is no value: a pair that was not run is never among the worst.
    assert largest(values, 99).tolist() == [1, 3, 0, 4, 6, 2]
    assert largest(values, 0).tolist() == []
    with pytest.raises(BadUsage, match="0 or more; got -1"):
        largest(values, -1)


def test_the_largest_are_those_of_a_sort() -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 50, size=2000).astype(np.float32)
    slow = sorted(range(len(values)), key=lambda place: (-values[place], place))
    for k in (1, 17, 400):
        assert largest(values, k).tolist() == slow[:k]


def test_each_is_run_again_and_agrees(
    truth: Truth, circuit: Circuit, pools: tuple[Pool, Pool], grid: np.ndarray
) -> None:
    cases = worst_cases(truth.model, circuit, *pools, grid, 5)
    assert len(cases) == 5 and not disagreements(cases)
    assert (
        cases[0].value == grid.max() > 1 and grid[cases[0].clean, cases[0].corrupted] == grid.max()
    )
    assert [case.value for case in cases] == sorted(grid.reshape(-1), reverse=True)[:5]
    for case in cases:
        assert case.again == pytest.approx(case.value, abs=1e-4)


def test_the_tokens_are_those_of_the_model_and_of_the_circuit(
    truth: Truth, pools: tuple[Pool, Pool]
) -> None:
    """The empty circuit is the model on the corrupted prompt:
    its tokens are that run's, by the original model.
    """
    model, (clean, corrupted) = truth.model, pools
    values = evaluate_pairs(
        model, [Circuit.empty(model.graph)], clean, corrupted, progress=SILENT
    ).circuits[0]
    for case in worst_cases(model, Circuit.empty(model.graph), clean, corrupted, values, 3):
        for tokens, row, found in (
            (clean.tokens, case.clean, case.model),
            (corrupted.tokens, case.corrupted, case.circuit),
        ):
            logits = model.hf(tokens[row][None]).logits[0, -1]
            best = logits.topk(3)
            assert [token.logit for token in found] == pytest.approx(best.values.tolist(), abs=1e-4)
            assert found[0].text == model.tokenizer.decode([int(best.indices[0])])  # pyright: ignore[reportOptionalMemberAccess]


def test_a_wrong_stored_value_is_found(
    truth: Truth, circuit: Circuit, pools: tuple[Pool, Pool], grid: np.ndarray
) -> None:
    spoiled = grid.copy()
    spoiled[3, 2] = grid.max() + 0.1
    wrong = disagreements(worst_cases(truth.model, circuit, *pools, spoiled, 2))
    assert [(case.clean, case.corrupted) for case in wrong] == [(3, 2)]
    assert wrong[0].again == pytest.approx(float(grid[3, 2]), abs=1e-4)


def test_pairs_are_run_with_their_own_prompt(truth: Truth, circuit: Circuit) -> None:
    clean, corrupted = draw_pools(truth.model, truth.task, 8, 8, matched=True)
    values = evaluate_pairs(
        truth.model, [circuit], clean, corrupted, grid=False, progress=SILENT
    ).circuits[0]
    cases = worst_cases(truth.model, circuit, clean, corrupted, values, 8)
    assert not disagreements(cases) and all(case.clean == case.corrupted for case in cases)


def test_constants_take_the_place_of_the_corrupted_prompt(
    truth: Truth, circuit: Circuit, pools: tuple[Pool, Pool]
) -> None:
    model, clean = truth.model, pools[0]
    batch = Batch.from_tokens(clean.tokens, clean.tokens, [0] * len(clean), [1] * len(clean))
    constants: Constants = ablated_values(model, batch, "mean", progress=SILENT)
    values = evaluate(model, circuit, ablate(model, batch, constants), "kl", progress=SILENT)
    cases = worst_cases(model, circuit, clean, clean, values, 3, ablated=constants)
    assert not disagreements(cases) and cases[0].value == values.max()


def test_values_of_other_pools_are_refused(
    truth: Truth, circuit: Circuit, pools: tuple[Pool, Pool], grid: np.ndarray
) -> None:
    with pytest.raises(
        BadUsage, match=r"9 clean and 7 corrupted prompts cannot have the shape \(9, 6\)"
    ):
        worst_cases(truth.model, circuit, *pools, grid[:, :6], 1)
    with pytest.raises(BadUsage, match="cannot have the shape"):
        worst_cases(truth.model, circuit, *pools, grid[:, 0], 1)
