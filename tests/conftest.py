"""What all tests share: two threads at most, and no network unless a test asks for it."""

from __future__ import annotations

import os

# Before transformers is imported anywhere, which reads it once.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

# Several workers share the machine; one alone takes two threads, so that timings mean the same
# everywhere.
torch.set_num_threads(
    1
    if "PYTEST_XDIST_WORKER" in os.environ or os.environ.get("OMP_NUM_THREADS") == "1"
    else min(2, os.cpu_count() or 1)
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped without one;
    tests marked `network` run only when asked for by `-m network`.
    """
    no_gpu = pytest.mark.skip(reason="there is no GPU")
    no_network = pytest.mark.skip(reason="needs the network: pytest -m network")
    for item in items:
        if "gpu" in item.keywords and not torch.cuda.is_available():
            item.add_marker(no_gpu)
        if "network" in item.keywords and "network" not in config.getoption("-m"):
            item.add_marker(no_network)
