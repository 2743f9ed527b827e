"""Ray clusters for tests: whether one can be started, and scripts that start one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any


@cache
def missing() -> str:
    """Why no cluster can be started, as without sockets or shared memory; "" if one can."""
    if find_spec("ray") is None:
        return "Ray is not installed"
    code = "import ray; ray.init('local', num_cpus=1, include_dashboard=False); ray.shutdown()"
    command = [sys.executable, "-W", "ignore", "-c", code]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        return "Ray does not start here in time"
    return f"Ray does not start here: {done.stderr[-300:]}" if done.returncode else ""


def run_script(words: Sequence[str], seconds: float = 240) -> subprocess.CompletedProcess[str]:
    """Run Python with a script that starts a cluster; once more where Ray itself does not go on.

    On a machine with little to spare Ray sometimes waits for ever for a node that is gone.
    """
    command = [sys.executable, "-W", "ignore", *words]
    about: dict[str, Any] = {
        "env": {**os.environ, "RAY_gcs_rpc_server_reconnect_timeout_s": "5"},
        "capture_output": True,
        "text": True,
        "timeout": seconds,
        "check": False,
    }
    try:
        return subprocess.run(command, **about)
    except subprocess.TimeoutExpired:
        return subprocess.run(command, **about)
