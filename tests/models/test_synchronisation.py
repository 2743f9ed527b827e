"""How often the hot loops wait for a device, counted on a CPU: none of it a layer.

On a GPU an operation whose result the host needs (`.item()`, `nonzero`, a boolean index, a copy to
the host) waits until all that was launched is done; a tensor made from Python numbers is copied to
the device. The counts of a model of eight layers less those of one of four, a quarter of it, are
those of a layer.
"""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, LlamaConfig

import mechassay as ma

WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal", "bincount"}
TO_HOST = {"cpu", "numpy", "tolist", "__array__"}
FROM_HOST = {"tensor", "as_tensor", "from_numpy"}


class Waits(TorchDispatchMode):
    def __init__(self, counts: Counter) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put_", "index_put") else ()
        if name in WAITING or any(x is not None and x.dtype == torch.bool for x in indices):
            self.counts["waits"] += 1
        return function(*args, **(kwargs or {}))


class Copies(TorchFunctionMode):
    def __init__(self, counts: Counter) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        self.counts["to host"] += name in TO_HOST
        self.counts["from host"] += name in FROM_HOST
        return function(*args, **(kwargs or {}))


def counted(call: Callable[[], object]) -> Counter:
    counts = Counter()
    with Copies(counts), Waits(counts):
        call()
    return counts


def llama(n_layers: int) -> ma.Model:
    config = LlamaConfig(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=n_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    return ma.load_model(AutoModelForCausalLM.from_config(config))


def experiments(n_layers: int) -> dict[str, Callable[[], object]]:
    model, generator = llama(n_layers), torch.Generator().manual_seed(0)
    clean, other = torch.randint(1, 60, (2, 6, 8), generator=generator).tolist()
    batch = ma.Batch.from_tokens(clean=clean, counterfactual=other, answers=[3] * 6, foils=[4] * 6)
    circuits, n_edges = ma.circuits, model.graph.n_edges
    scores = circuits.EAP().score(model, batch)
    ten = [scores.top(n_edges * k // 10, by="magnitude") for k in range(1, 11)]
    return {
        "EAP": lambda: circuits.EAP().score(model, batch),
        "EAP by GIM": lambda: circuits.EAP(backward="gim").score(model, batch),
        "EAP-IG-inputs": lambda: circuits.EAPIGInputs(steps=5).score(model, batch),
        "one circuit": lambda: circuits.evaluate(model, ten[0].pruned(), batch),
        "ten circuits": lambda: circuits.evaluate(model, ten, batch),
        "mask steps": lambda: circuits.SubnetworkProbing(steps=3, batch_size=3).score(model, batch),
    }


@pytest.fixture(scope="module")
def counts():
    four, eight = (
        {name: counted(experiment) for name, experiment in experiments(n).items()} for n in (4, 8)
    )
    return {name: (four[name], eight[name]) for name in four}


def test_the_counters_count():
    x = torch.arange(4.0)
    assert counted(lambda: x[x > 1].sum().item()) == {"waits": 2, "to host": 0, "from host": 0}
    assert counted(lambda: torch.tensor(x.tolist())) == {"to host": 1, "from host": 1}


@pytest.mark.parametrize("experiment", list(experiments(1)))
def test_nothing_waits_for_the_device_in_a_layer(counts, experiment):
    four, eight = counts[experiment]
    assert eight == four, f"{experiment}: {dict(eight - four)} more for four layers more"
