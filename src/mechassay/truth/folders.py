"""A ground truth as a folder: a model and tokenizer that load like any others, and truth.json.

    {"format": 1, "task": name, "graph": fingerprint, "split": ..., "seed": ..., "n_pairs": ...,
     "ablations": {ablation: {"edges": [...], "smallest_inside": ..., "largest_outside": ...,
     "together": ...,
                              "shares": [...], "shares_in_pair": [...]}},
     "training": {...}}                                                       for a trained model

with the verified edges (`mechassay.truth.verify`), the smallest of their largest effects, the
largest effect of another edge, and that of all others at once. `shares` are those of pairs in which
each edge of the circuit exceeds the largest effect of the others in any pair, `shares_in_pair` in
that same pair. All are over the first `n_pairs` pairs of the split, means too. Files of older
versions lack the last three. A circuit that does not hold is never written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechassay.models.hugging_face import quiet
from mechassay.truth.tasks import UNKNOWN
from mechassay.truth.verify import Verification

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

FORMAT = 1
FILE = "truth.json"


def word_tokenizer(vocabulary: Sequence[str], context: int) -> PreTrainedTokenizerFast:
    """A tokenizer that knows these words, one token each, separated by spaces; ids are places."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    ids = {word: number for number, word in enumerate(vocabulary)}
    tokenizer: Any = Tokenizer(WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=UNKNOWN, model_max_length=context
    )


def write_model(model: PreTrainedModel, vocabulary: Sequence[str], folder: Path) -> None:
    """Write a model and a tokenizer of its words as a folder that loads like any model."""
    write_weights(model, folder)
    write_tokenizer(vocabulary, int(model.config.max_position_embeddings), folder)


def write_weights(model: PreTrainedModel, folder: Path) -> None:
    """Write a model's configuration and weights."""
    with quiet():
        model.save_pretrained(folder)
    # What depends on the version of transformers says nothing about the model.
    _rewrite(folder / "config.json", {"transformers_version": None})
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "model.safetensors").chmod(0o644)


def write_tokenizer(vocabulary: Sequence[str], context: int, folder: Path) -> None:
    """Write a tokenizer of words."""
    word_tokenizer(vocabulary, context).save_pretrained(folder)
    fixed = {"backend": None, "tokenizer_class": "PreTrainedTokenizerFast"}
    _rewrite(folder / "tokenizer_config.json", fixed)


def write_truth(
    folder: Path,
    task: str,
    ablations: Mapping[str, Verification],
    *,
    split: str,
    seed: int,
    training: Mapping[str, Any] | None = None,
) -> None:
    """Write truth.json beside a model.

    Args:
        ablations: what was verified, by ablation; all on the same pairs and all hold.
    """
    assert ablations and all(each.holds for each in ablations.values())
    first = next(iter(ablations.values()))
    record: dict[str, Any] = {
        "format": FORMAT,
        "task": task,
        "graph": first.claimed.graph.fingerprint,
        "split": split,
        "seed": seed,
        "n_pairs": first.n_pairs,
        "ablations": {name: _row(each) for name, each in ablations.items()},
    }
    if training is not None:
        record["training"] = dict(training)
    (folder / FILE).write_text(json.dumps(record, indent=2) + "\n", "utf-8")


def _row(done: Verification) -> dict[str, Any]:
    inside = done.claimed.edges
    return {
        "edges": done.claimed.names(),
        "smallest_inside": done.smallest_inside,
        "largest_outside": done.largest_outside,
        "together": done.together,
        "shares": done.shares[inside].tolist(),
        "shares_in_pair": done.shares_in_pair[inside].tolist(),
    }


def _rewrite(file: Path, changes: Mapping[str, str | None]) -> None:
    """Change entries of a JSON file; None removes one."""
    entries = {**json.loads(file.read_text("utf-8")), **changes}
    kept = {key: value for key, value in entries.items() if changes.get(key, "") is not None}
    file.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n", "utf-8")
