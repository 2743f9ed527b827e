"""Options that several commands share, and how they load a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mechassay.models.model import Model

ModelOption = Annotated[
    str,
    typer.Option(
        "--model", "-m", help="Packaged model, ground truth, hub id, local folder or .gguf file."
    ),
]
TaskOption = Annotated[
    str,
    typer.Option(
        "--task",
        "-t",
        help="Task, see `mechassay tasks list`; that of a ground truth has its name.",
    ),
]
OutputOption = Annotated[
    Path,
    typer.Option(
        "--output", "-o", help="Folder for results; the same command again goes on there."
    ),
]
CounterfactualOption = Annotated[
    str | None,
    typer.Option(
        "--counterfactual", help="Kind of corrupted prompts; the task's default if not given."
    ),
]
ObjectiveOption = Annotated[
    str | None,
    typer.Option(
        "--objective",
        help=(
            "What a method looks for its circuit by: logit_diff, kl, ...; the task's own if not"
            " given."
        ),
    ),
]
PairingOption = Annotated[
    str,
    typer.Option(
        "--pairing",
        help=(
            "Corrupted prompts that a method looks for its circuit with: matched (each prompt's"
            " own), random (another example's, of equal length) or same-template (random, of the"
            " same template)."
        ),
    ),
]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, mps.")]
DtypeOption = Annotated[str, typer.Option("--dtype", help="float32, float64, bfloat16 or float16.")]
SeedOption = Annotated[
    int,
    typer.Option(
        "--seed", min=0, max=2**62 - 1, help="Seed of the task's examples and of the bootstrap."
    ),
]
BosOption = Annotated[
    bool,
    typer.Option(
        "--prepend-bos",
        help=(
            "Put BOS before every prompt where the tokenizer does not (as TransformerLens does for"
            " GPT-2)."
        ),
    ),
]


def load(model: str, dtype: str, device: str, prepend_bos: bool = False) -> Model:
    """Load a model for a command: one of a ground truth by its name, or any other."""
    from mechassay.runs.names import load_named

    return load_named(model, dtype=dtype, device=device, prepend_bos=prepend_bos)
