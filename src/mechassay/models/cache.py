"""The cache of models that were fetched, dequantised or compiled: folders that appear whole or not
at all.

Everything is made in `<cache>/tmp` and renamed into place when complete.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory

import platformdirs
from safetensors import SafetensorError

from mechassay.errors import MechassayError

_DAY = 86_400.0


def cache_folder() -> Path:
    """The folder for models that are made here: `MECHASSAY_CACHE`, else the platform's."""
    chosen = os.environ.get("MECHASSAY_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(platformdirs.user_cache_dir("mechassay"))


@contextlib.contextmanager
def workbench() -> Generator[Path]:
    """A folder inside the cache, so on the same disk as what it becomes; gone afterwards."""
    root = cache_folder() / "tmp"
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Left by a killed process; a younger folder may be another process at work.
        for left in root.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime > _DAY:
                    shutil.rmtree(left, ignore_errors=True)
        with TemporaryDirectory(dir=root) as folder:
            yield Path(folder)
    except (OSError, SafetensorError) as error:
        raise MechassayError(
            f"Cannot write to the cache {root.parent} ({error}); MECHASSAY_CACHE names another"
            " folder."
        ) from error


def publish(finished: Path, target: Path) -> None:
    """Rename a folder of the workbench into its place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(finished, target)
    except OSError:
        if not is_model_folder(target):  # else another process was first, with the same content
            raise


def is_model_folder(folder: Path) -> bool:
    """Whether a folder holds a model itself, not in its subfolders."""
    return (folder / "config.json").is_file()
