"""Packages of others: installed into a folder, and the command line with that folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def install(package: Path, folder: Path) -> None:
    """Install a package into a folder, from a copy of its sources."""
    copied = folder / "sources" / package.name
    shutil.copytree(package, copied)
    words = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    pip = [sys.executable, "-m", "pip", *words, "--target", str(folder), str(copied)]
    subprocess.run(pip, check=True, capture_output=True, text=True)


def python(folder: Path, *words: str) -> str:
    """What a Python command prints, with what is installed in `folder`."""
    path = os.pathsep.join([str(folder), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def mechassay(folder: Path, *words: str) -> str:
    """What a command of ours prints, with what is installed in `folder`."""
    return python(folder, "-m", "mechassay", *words)
