"""How numbers are computed: TF32, with PyTorch's flag of the user put back, and compiled code."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest
import torch

import mechassay as ma
from mechassay.circuits.methods import attribution, mask_learning
from mechassay.circuits.methods.mask_learning import SubnetworkProbing, fidelity_and_gradient
from mechassay.circuits.methods.method import seeded
from mechassay.errors import BadUsage, UnknownName
from mechassay.models import computing as models_computing
from mechassay.models.computing import bucket, chosen, computing, products_of_changes
from mechassay.models.decoder import Decoder, Readout
from mechassay.models.forward import Contrast
from mechassay.models.objectives import Kl
from mechassay.prompts.batch import Batch
from mechassay.testing.tiny import build, subject
from mechassay.utils.display import SILENT

FLAGS = {"auto": "medium", "on": "high", "off": "highest"}
"""PyTorch's flag inside, of a user whose own is `medium`."""


@pytest.fixture(autouse=True)
def own_flag() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("choice", FLAGS)
def test_the_flag_is_set_and_put_back(choice: str) -> None:
    with computing(choice):
        assert torch.get_float32_matmul_precision() == FLAGS[choice]
        assert chosen().tf32 == choice
    assert torch.get_float32_matmul_precision() == "medium"
    assert chosen().tf32 == "auto"


def test_an_error_inside_puts_it_back() -> None:
    with pytest.raises(ZeroDivisionError), computing("on"):
        _ = 1 / 0
    assert (torch.get_float32_matmul_precision(), chosen().tf32) == ("medium", "auto")


def test_another_word_is_refused() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'on'"), ma.computing("onn"):
        pass


@pytest.mark.parametrize(
    ("choice", "device", "dtype", "flag"),
    [
        ("auto", "cuda", torch.bfloat16, "high"),
        ("auto", "cuda", torch.float16, "high"),
        ("auto", "cuda", torch.float32, "medium"),
        ("auto", "cpu", torch.bfloat16, "medium"),
        ("off", "cuda", torch.bfloat16, "highest"),
        ("off", "cuda", torch.float32, "highest"),
        ("on", "cuda", torch.float32, "high"),
    ],
)
def test_products_of_changes(choice: str, device: str, dtype: torch.dtype, flag: str) -> None:
    with computing(choice):
        outside = torch.get_float32_matmul_precision()
        with products_of_changes(torch.device(device), dtype):
            assert torch.get_float32_matmul_precision() == flag
        assert torch.get_float32_matmul_precision() == outside


@pytest.mark.parametrize("choice", FLAGS)
def test_a_method_multiplies_under_it(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag where EAP multiplies changes with gradients, and where its runs are made."""
    flags: dict[str, str] = {}
    for name in ("_contract_block", "tapped_forward"):
        own = getattr(attribution, name)

        def seen(*given, name=name, own=own, **more):
            flags[name] = torch.get_float32_matmul_precision()
            return own(*given, **more)

        monkeypatch.setattr(attribution, name, seen)
    model = ma.load_model("truth-ioi")
    pairs = ma.load_task("truth-ioi").pairs("train", model, limit=4)
    with computing(choice):
        ma.circuits.EAP().score(model, pairs)
    assert flags == dict.fromkeys(("_contract_block", "tapped_forward"), FLAGS[choice])
    assert torch.get_float32_matmul_precision() == "medium"


def test_a_model_is_checked_at_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPUs with AMX the user's `medium` rounds to bfloat16, and no model would pass."""
    hf, flags = build("llama"), list[str]()
    own = hf.forward

    def forward(*given, **more):
        flags.append(torch.get_float32_matmul_precision())
        return own(*given, **more)

    monkeypatch.setattr(hf, "forward", forward)
    ma.load_model(hf)
    assert flags == ["highest", "highest"]
    assert torch.get_float32_matmul_precision() == "medium"


# Compiled steps of trained masks

STILL = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
"""PyTorch looks at gradients of what it compiles, which here is no leaf; warnings are errors."""


@pytest.mark.parametrize(
    ("n", "columns"),
    [(1, 8), (8, 8), (9, 16), (18, 24), (64, 64), (65, 80), (81, 96), (129, 160), (1000, 1024)],
)
def test_lengths_that_prompts_are_padded_to(n: int, columns: int) -> None:
    assert bucket(n) == n
    with computing(compiled=True):
        assert bucket(n) == columns
        assert bucket(columns) == columns


LENGTHS = (11, 13, 12, 19, 21)
"""Of which the first three are padded to 16 columns, and the others to 24."""


def pairs_of(n_tokens: int, generator: torch.Generator) -> Batch:
    """Four pairs, of which two are shorter, that differ in the last five tokens."""
    clean = torch.randint(1, 30, (4, n_tokens), generator=generator)
    other = clean.clone()
    other[:, -5:] = torch.randint(1, 30, (4, 5), generator=generator)
    begins = (0, 0, 1, 2)
    rows = [
        [x[begin:].tolist() for x, begin in zip(y, begins, strict=True)] for y in (clean, other)
    ]
    return Batch.from_tokens(*rows, answers=[3] * 4, foils=[4] * 4)


class Steps:
    """The loss and its gradient by a random mask, of batches of several lengths."""

    def __init__(self, family: str) -> None:
        self.model, generator = subject(family, torch.float64).model, seeded(0)
        graph = self.model.graph
        shape = (1, graph.n_writers, graph.n_readers)
        self.mask = torch.rand(shape, generator=generator, dtype=torch.float64) * graph.legal
        self.batches = [pairs_of(n, generator) for n in LENGTHS]

    def run(self, n: int = len(LENGTHS)) -> list[tuple[float, torch.Tensor]]:
        method = SubnetworkProbing(steps=3, batch_size=4)
        return [
            fidelity_and_gradient(self.model, batch, Kl(), self.mask, method, 10**6)
            for batch in self.batches[:n]
        ]


def assert_same(
    ours: list[tuple[float, torch.Tensor]], theirs: list[tuple[float, torch.Tensor]]
) -> None:
    for (loss, gradient), (own_loss, own_gradient) in zip(ours, theirs, strict=True):
        assert float(own_gradient.abs().max()) > 1e-3
        assert loss == pytest.approx(own_loss, rel=1e-10, abs=1e-12)
        torch.testing.assert_close(gradient, own_gradient, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "neox"])
def test_padding_to_a_bucket_changes_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, widths = Steps(family), set[tuple[int, int]]()
    plain = steps.run()
    own = mask_learning.masked_readout

    def seen(decoder: Decoder, contrast: Contrast, mask: torch.Tensor) -> Readout:
        widths.add((contrast.batch.n_tokens, contrast.other.embed.shape[1]))
        return own(decoder, contrast, mask)

    monkeypatch.setattr(mask_learning, "masked_readout", seen)
    assert_same(steps.run(), plain)
    assert widths == {(n, 5) for n in LENGTHS}
    widths.clear()
    monkeypatch.setattr(mask_learning, "bucket", lambda n: -(-n // 8) * 8)
    assert_same(steps.run(), plain)
    assert widths == {(16, 8), (24, 8)}


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], tuple[int, int]]]:
    """How many graphs torch.compile made, and how often one was cut, as no C++ is compiled."""
    from torch._dynamo.utils import counters

    monkeypatch.setattr(models_computing, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    counters.clear()
    yield lambda: (counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()))
    torch._dynamo.reset()


@STILL
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("family", "one_length", "two_lengths"),
    # Heads and MLP of the last layer, and of the others; of heads one for each sort of window.
    [
        ("llama", 4, 6),
        ("gemma2", 5, 8),
        ("gemma3", 5, 8),
        ("gpt2", 4, 6),
        ("neox", 4, 6),
        ("gptj", 4, 6),
        ("olmo2", 4, 6),
        ("cohere", 4, 6),
        ("qwen3", 4, 6),
    ],
)
def test_compiled_steps_are_the_same_and_are_compiled_once_a_length(
    family: str,
    one_length: int,
    two_lengths: int,
    graphs: Callable[[], tuple[int, int]],
) -> None:
    steps = Steps(family)
    plain = steps.run()
    assert graphs() == (0, 0)
    with computing(compiled=True):
        assert_same(steps.run(3), plain[:3])
        assert graphs() == (one_length, 0)
        assert_same(steps.run(), plain)
        assert graphs() == (two_lengths, 0)
    assert_same(steps.run(), plain)
    assert graphs() == (two_lengths, 0)


# What PyTorch warns of within its own compiler is no fault of the code that it makes.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_inductors_code_gives_the_same(family: str) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    steps = Steps(family)
    plain = steps.run(1)
    with computing(compiled=True):
        assert_same(steps.run(1), plain)


@STILL
def test_what_cannot_be_compiled_is_refused(graphs: Callable[[], tuple[int, int]]) -> None:
    with computing(compiled=True), pytest.raises(BadUsage, match="torch.compile refuses"):
        Steps("mixtral").run(1)


@STILL
def test_a_mask_is_trained_compiled(graphs: Callable[[], tuple[int, int]]) -> None:
    steps = Steps("llama")
    method = SubnetworkProbing(steps=3, batch_size=2)
    plain = method.score(steps.model, steps.batches[0], progress=SILENT)
    with ma.computing(compiled=True):
        ours = method.score(steps.model, steps.batches[0], progress=SILENT)
    assert graphs()[0] > 0
    torch.testing.assert_close(ours.values, plain.values, equal_nan=True, atol=1e-9, rtol=1e-9)
