"""GGUF files as folders that transformers reads: dequantised to float32, and put right.

The file's own metadata say what transformers misreads of it.
"""

from __future__ import annotations

import contextlib
import io
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechassay.errors import BadFile, MissingExtra, UnsupportedModel, first_line
from mechassay.models.hugging_face import UNREADABLE, load_whole, quiet

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
            model = load_whole(str(gguf.parent), **options)
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
