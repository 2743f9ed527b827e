"""What all tests share: two threads at most, and no network unless a test asks for it."""

from __future__ import annotations

import gc
import os
import sys
from typing import Any

# Before transformers is imported anywhere, which reads it once.
os.environ["HF_HUB_OFFLINE"] = "1"
# Workers have one of 80; what tests read is printed to a pipe, which has no width.
os.environ.pop("COLUMNS", None)

import pytest
import torch
from hypothesis import settings
from threadpoolctl import threadpool_limits

from helpers.shapes import check_again, check_arrays_alone

check_arrays_alone()

# Until all tests are collected nothing is thrown away (`pytest_collection_finish`).
gc.disable()

# What is compiled is kept even where the environment says not to: otherwise each worker compiles
# all tests and the package anew (20 seconds), and each process that a test starts the package.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Several workers share the machine; one alone takes two threads, so that timings mean the same
# everywhere. NumPy and SciPy have threads of their own, which wait for each other most of the time
# where there are more of them than cores: a test of three seconds then takes a minute.
threads = (
    1
    if "PYTEST_XDIST_WORKER" in os.environ or os.environ.get("OMP_NUM_THREADS") == "1"
    else min(2, os.cpu_count() or 1)
)
torch.set_num_threads(threads)
os.environ["OPENBLAS_NUM_THREADS"] = str(threads)  # of what is loaded later
threadpool_limits(threads, user_api="blas")


# The same examples every time, however busy the machine is;
# `pytest --hypothesis-profile=search` looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=1000, deadline=None)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--all` runs slow tests too."""
    parser.addoption("--all", action="store_true", help="run slow tests too")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """All tests of a file run in one worker, so that what they share is made once; but those that
    take minutes and share nothing each where there is room.
    """
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            apart = nodeid.startswith("tests/docs/test_coverage.py")
            return nodeid if apart else super()._split_scope(nodeid)

    return ByFile(config, log)


_drawing: dict[str, Any] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Shapes are checked anew in each test. Charts of pages are empty, but with `--all` and in
    tests marked `charts`: drawing takes half the time of a small run, which seldom is about them.
    """
    check_again()
    if plots := sys.modules.get("mechassay.results.plots"):
        _drawing.setdefault("svg", plots.svg)
        drawn = item.config.getoption("--all") or {"charts", "web"} & set(item.keywords)
        vars(plots)["svg"] = _drawing["svg"] if drawn else lambda figure: "<svg></svg>"


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: looking through them for cycles, again and again, would
    take a fifteenth of the time.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped without one, `network` and `web` ones run only with
    `-m network` or `-m web`, `slow` and `guard` ones only with `--all`, `-m slow` or `-m guard`. Of
    the cases of a test marked `few(n)`, n that are spread over all of them are not slow.
    """
    cases: dict[object, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("few") and not {"slow", "guard"} & set(item.keywords):
            cases.setdefault(getattr(item, "function", item), []).append(item)
    for own in cases.values():
        mark = own[0].get_closest_marker("few")
        assert mark is not None
        n = min(mark.args[0], len(own))
        kept = {round(i * (len(own) - 1) / max(1, n - 1)) for i in range(n)}
        for number, item in enumerate(own):
            if number not in kept:
                item.add_marker(pytest.mark.slow)
    marks = config.getoption("-m")
    left_out = {
        "gpu": "" if torch.cuda.is_available() else "there is no GPU",
        "network": "" if "network" in marks else "needs the network: pytest -m network",
        "web": "" if "web" in marks else "needs a browser or a server: make test-web",
        "slow": "" if config.getoption("--all") or "slow" in marks else "slow: pytest --all",
        "guard": "" if config.getoption("--all") or "guard" in marks else "slow: make test-guards",
    }
    for item in items:
        for mark, reason in left_out.items():
            if reason and mark in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))
