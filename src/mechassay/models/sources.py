"""What the name of a model stands for, decided without loading anything (`find_source`).

1. a packaged name (`packaged.json`) is its folder in the cache, made by `fetch`;
2. a ground truth's name ("truth-ioi"), or "gym-neox", is its folder in this package; that of a
   compiled ground truth is made in the cache when it is first loaded (`truth.compiled`);
3. a folder with a `config.json` is itself, one of checkpoints ("step0", "step64") is the last
   one;
4. a `.gguf` file is dequantised once into the cache, keyed by the SHA-256 of its content;
5. `owner/name`, or one of the hub's few names without an owner, is left to the hub;
6. any of these but a file with `@` and a revision is that checkpoint: a folder's subfolder, or
   the hub's revision (branch, tag or commit). What exists under the whole name comes first;
7. any of these behind `untrained:` is its architecture and tokenizer, with weights as its class
   in transformers draws them before any training.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from mechassay.errors import BadFile, BadUsage, MechassayError, ModelNotFetched, UnknownName
from mechassay.models.weight_files import (
    cache_folder,
    is_fetched,
    is_model_folder,
    packaged_folder,
    packaged_models,
)
from mechassay.utils.digests import DigestCache, FileState, states_of
from mechassay.utils.files import no_folder, relative_name

AT = "@"
UNTRAINED = "untrained:"
_STEP = re.compile(r"(?:step|checkpoint)[-_]?(\d+)", re.IGNORECASE)


def split_revision(name: str) -> tuple[str, str]:
    """The model and the revision of "gpt2@step64"; no revision if a file has the whole name."""
    model, at, revision = name.rpartition(AT)
    return (model, revision) if at and not Path(name).exists() else (name, "")


def training_step(revision: str) -> int | None:
    """The step in names such as "step512", "checkpoint-512" and "stage1-step512-tokens2B"; None if
    there is none.
    """
    match = _STEP.search(revision)
    return None if match is None else int(match[1])


_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_IDS_WITHOUT_OWNER = frozenset(
    {"gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "distilgpt2", "openai-gpt"}
)
TRUTH_FOLDERS = Path(__file__).parents[1] / "truth" / "data"
"""What is known of the models whose circuit is known, a folder each: with the model's files where
it was trained, without them where it is compiled."""
GYM_FOLDERS = Path(__file__).parents[1] / "gym" / "data"
"""Models of the gym tasks come with this package, with checkpoints."""
OTHER_CHECKPOINTS = (
    "`make study gym-neox`, in a checkout of the repository, trains gym-neox and keeps steps 0, 32,"
    " 64, 256, 512 and 1000 too."
)
STEP = re.compile(r"step(\d+)")
"""The name of a checkpoint's folder."""


@dataclass(frozen=True)
class Resolved:
    """A model source that is ready to load: a folder, or a hub id (`location`).

    `name` and `note`, which may be empty, are for reports. `revision` is which checkpoint of a hub
    id is asked for; a folder's is in its location. `untrained`: weights are drawn instead of read.
    `own`: a folder or file of the user's, whose name does not say which weights are in it.
    """

    kind: Literal["packaged", "compiled", "folder", "gguf", "hub"]
    name: str
    location: str
    note: str = ""
    revision: str | None = None
    untrained: bool = False
    own: bool = False


def truth_names() -> list[str]:
    """The models whose circuit is known, sorted."""
    return sorted(file.parent.name for file in TRUTH_FOLDERS.glob("*/truth.json"))


MADE_TRUTHS = (
    "truth-text-ioi",
    "truth-text-ioi-backup",
    "truth-text-ioi-mixed",
    "truth-text-ioi-negative",
    "truth-text-ioi-parallel",
    "truth-text-ioi-redundant",
)
"""Ground truths of InterpBench's size, which `mechassay truth make` trains on this machine."""


def made_truth_folder(name: str) -> Path:
    """Where the model of such a ground truth is kept, once it is made."""
    return cache_folder() / "truth" / "made" / name


ALL_TRUTHS = "truth"
"""What stands for all ground truths among the models of a run."""


def with_truths(models: Sequence[str]) -> tuple[str, ...]:
    """The models, each once, "truth" written out."""
    named = [truth_names() if name == ALL_TRUTHS else [name] for name in models]
    return tuple(dict.fromkeys(name for names in named for name in names))


def gym_model_names() -> list[str]:
    """The models that were trained on the gym tasks, sorted."""
    return sorted(folder.name for folder in GYM_FOLDERS.iterdir() if checkpoints(folder))


def checkpoints(folder: Path) -> list[str]:
    """The checkpoints in a folder, subfolders such as "step64" with a model, by their step."""
    if not folder.is_dir():
        return []
    names = [step.name for step in folder.glob("step*") if is_model_folder(step)]
    steps = {int(match[1]): match[0] for name in names if (match := STEP.fullmatch(name))}
    return [steps[step] for step in sorted(steps)]


def find_source(source: str) -> Resolved:
    """Decide what `source` is, and do nothing: a GGUF file is only looked for, and the location of
    a compiled ground truth is what is known of it.

    Raises:
        ModelNotFetched, BadFile, BadUsage, UnknownName: as `resolve`.
    """
    if source.startswith(UNTRAINED):
        known_source = find_source(source.removeprefix(UNTRAINED))
        name = f"{UNTRAINED}{known_source.name}"
        return replace(known_source, name=name, note="", untrained=True)
    known_source = _find_whole(source)
    if known_source is not None:
        folder = Path(known_source.location)
        if known_source.kind not in ("packaged", "folder") or is_model_folder(folder):
            return known_source
        # Of a folder of checkpoints the last one.
        return replace(known_source, location=str(folder / checkpoints(folder)[-1]))
    name, at, revision = source.rpartition("@")
    if at and (whole := _find_whole(name)) is not None:
        return _revision(whole, revision)
    if len(Path(source).parts) > 1:
        raise BadFile(f"{source}: {no_folder(source)}; expected one with a model, or a .gguf file.")
    raise UnknownName(
        "model", source, [*packaged_models(), *truth_names(), *MADE_TRUTHS, *gym_model_names()]
    )


def check_sources(names: Iterable[str], given: Collection[str] = ()) -> None:
    """Refuse models none of which is on this machine.

    If some are, those that are not end as failures beside their results.

    Args:
        given: names for which there are objects.

    Raises:
        UnknownName, BadFile, ModelNotFetched: what is wrong with the first model.
    """
    wrong: list[MechassayError] = []
    for name in names:
        if name in given:
            return
        try:
            find_source(name)
        except MechassayError as error:
            wrong.append(error)
        else:
            return
    if wrong:
        raise wrong[0]


def _find_whole(source: str) -> Resolved | None:
    """What a source is as a whole, a folder of checkpoints too; None if it is of no kind."""
    models = packaged_models()
    if source in models:
        if not is_fetched(source):
            raise ModelNotFetched(
                f"Model {source!r} is not on this machine yet: run `mechassay models fetch"
                f" {source}`."
            )
        return Resolved("packaged", source, str(packaged_folder(source)), models[source].title)
    if source in truth_names():
        folder = TRUTH_FOLDERS / source
        kind = "folder" if is_model_folder(folder) else "compiled"
        return Resolved(kind, source, str(folder))
    if source in MADE_TRUTHS:
        folder = made_truth_folder(source)
        if not is_model_folder(folder):
            raise ModelNotFetched(
                f"{source} is trained and verified on this machine, once: run `mechassay truth make"
                f" {source}` (about two minutes on one core; `mechassay truth list`)."
            )
        return Resolved("folder", source, str(folder))
    if source in gym_model_names():
        return Resolved("folder", source, str(GYM_FOLDERS / source))
    path = Path(os.path.expanduser(source)).absolute()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise BadFile(f"There is no file {str(path)!r}.")
        return Resolved("gguf", path.stem, str(path), own=True)
    if source and path.is_dir():
        if not is_model_folder(path) and not checkpoints(path):
            pickled = next((file.name for file in path.glob("*cfg*.pkl")), "")
            if pickled:
                raise BadFile(
                    f"The folder {source!r} has its sizes in {pickled}, a pickle, which can run"
                    " code and is not opened: write them to config.json (n_layers, n_heads,"
                    " d_model, d_head, n_ctx, d_vocab, d_mlp, act_fn, normalization_type)."
                )
            if (path / "adapter_config.json").is_file():
                raise BadFile(
                    f"The folder {source!r} holds only an adapter (PEFT) of {_adapted(path)}: load"
                    " both with PEFT, and save what merge_and_unload() returns."
                )
            raise BadFile(f"The folder {source!r} has no config.json, so it holds no model.")
        return Resolved("folder", cached_repository(path) or path.name, str(path), own=True)
    return Resolved("hub", source, source) if is_hub_id(source) else None


def cached_repository(folder: Path) -> str:
    """Return the repository of a commit's folder in a cache of the hub, such as "owner/name"; "" if
    the folder is not in such a cache.
    """
    above = folder.parent.parent
    if folder.parent.name != "snapshots" or not above.name.startswith("models--"):
        return ""
    return above.name.removeprefix("models--").replace("--", "/")


def is_own(name: str) -> bool:
    """Return whether the name of a model is the path of a folder or a file that exists, perhaps
    with a revision.
    """
    model = split_revision(name.removeprefix(UNTRAINED))[0]
    known = (packaged_models(), truth_names(), MADE_TRUTHS, gym_model_names())
    is_known = any(model in names for names in known)
    return bool(model) and not is_known and Path(model).expanduser().exists()


def model_name(text: str) -> str:
    """Return the name of a model: a path relative to the working directory with links resolved, or
    the text itself if it names no path.
    """
    if not is_own(text):
        return text
    prefix = UNTRAINED if text.startswith(UNTRAINED) else ""
    path, revision = split_revision(text.removeprefix(UNTRAINED))
    return f"{prefix}{relative_name(path)}{f'{AT}{revision}' if revision else ''}"


# The files of a source, by whose states digests are cached.

_MODEL_FILES = ("*.safetensors", "*.safetensors.index.json", "*.pt", "*.pth", "*config.json")
_TOKENIZER_FILES = ("*token*.json", "vocab.*", "merges.txt", "*.model")


@dataclass(frozen=True)
class SourceFiles:
    """The files that a model and its tokenizer are loaded from.

    Attributes:
        path: the folder or file.
        about: what the loaded weights depend on as well: their type, and versions of packages.
        states: of the files, see `utils.digests.states_of`.
    """

    path: Path
    about: str
    states: dict[str, FileState]

    def changed(self) -> bool:
        """Return whether a file has another state now, or is gone."""
        return states_of(map(Path, self.states)) != self.states


def source_files(source: Resolved, dtype: str) -> SourceFiles | None:
    """Return the files of a model; None if the model is not on this machine. Nothing is loaded.

    Args:
        dtype: of the loaded weights, such as "float32".
    """
    path = Path(source.location)
    about = [source.kind, dtype, f"transformers {version('transformers')}"]
    if source.untrained:
        about += ["untrained", f"torch {version('torch')}"]
    if source.kind == "hub":
        snapshot = _snapshot(source)
        if snapshot is None:
            return None
        path = snapshot
    files = [path]
    if source.kind == "compiled":  # The weights are a calculation of the package.
        files = [path / "truth.json", *TRUTH_FOLDERS.parent.glob("*.py")]
    elif path.is_dir():
        files = [file for pattern in _MODEL_FILES for file in path.glob(pattern)]
        # A checkpoint can have the tokenizer of the folder above.
        is_checkpoint = STEP.fullmatch(path.name) or source.name.endswith(f"@{path.name}")
        for folder in (path, path.parent) if is_checkpoint else (path,):
            files += [file for pattern in _TOKENIZER_FILES for file in folder.glob(pattern)]
    return SourceFiles(path, " ".join(about), states_of(sorted(set(files))))


def _snapshot(source: Resolved) -> Path | None:
    """Return the folder of a hub model's commit in the hub's cache; None if there is none."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(HF_HUB_CACHE) / f"models--{source.location.replace('/', '--')}"
    revision = source.revision or "main"
    commit = folder / "refs" / revision
    name = commit.read_text("utf-8").strip() if commit.is_file() else revision
    snapshot = folder / "snapshots" / name
    return snapshot if snapshot.is_dir() else None


def digest_cache() -> DigestCache:
    """Return the cache of digests of models and files."""
    return DigestCache(cache_folder() / "digests")


def known_digests(name: str, dtype: str) -> dict[str, str] | None:
    """Return the digests of a model from the cache; None if they are not cached. No weights are
    read.

    Raises:
        ModelNotFetched, BadFile, BadUsage, UnknownName: see `find_source`.
    """
    files = source_files(find_source(name), dtype)
    return files and digest_cache().known(files.path, files.states, about=files.about)


def _adapted(folder: Path) -> str:
    """The model that an adapter changes, as its configuration says."""
    try:
        base = json.loads((folder / "adapter_config.json").read_text("utf-8"))
        name = base["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        name = None
    return repr(name) if name else "a model that its configuration does not name"


def is_hub_id(name: str) -> bool:
    """Whether a name has the form of a hub id; a folder of that name comes first."""
    return name in _HUB_IDS_WITHOUT_OWNER or _HUB_ID.fullmatch(name) is not None


def _revision(whole: Resolved, revision: str) -> Resolved:
    """A checkpoint of what the name before the @ stands for."""
    name = f"{whole.name}@{revision}"
    if whole.kind == "gguf":
        raise BadUsage(f"A .gguf file has no revisions; got {name!r}.")
    if not revision:
        raise BadUsage(f"After the @ comes the name of a revision; got {name!r}.")
    if whole.kind == "hub":
        return replace(whole, name=name, revision=revision)
    folder = Path(whole.location)
    known = [subfolder.name for subfolder in folder.iterdir() if is_model_folder(subfolder)]
    if revision not in known:
        note = OTHER_CHECKPOINTS if folder.parent == GYM_FOLDERS else ""
        raise UnknownName(f"checkpoint of {whole.name}", revision, known, note)
    return replace(whole, name=name, location=str(folder / revision))
