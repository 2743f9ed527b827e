"""Coefficients of IOI's linear causal model in a submission to MIB's causal track.

They stand in ioi_linear_params.json: {model: {bias, token_coeff, position_coeff}}.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, nan
from pathlib import Path
from typing import Any

from mechassay.errors import BadFile, BadUsage
from mechassay.submissions import read_json
from mechassay.variables.models.ioi import LogitDifference
from mechassay.variables.variable_alignment import VariableAlignment

PARAMETERS = "ioi_linear_params.json"
COEFFICIENTS = {"bias": "bias", "token": "token_coeff", "position": "position_coeff"}
LINEAR = "ioi_task"
SHORT = {
    "GPT2LMHeadModel": "gpt2",
    "Qwen2ForCausalLM": "qwen",
    "Gemma2ForCausalLM": "gemma",
    "LlamaForCausalLM": "llama",
}
"""What MIB's script that fits the coefficients calls a model."""


def read_coefficients(path: Path) -> Mapping[str, LogitDifference]:
    """By the file's names of models."""
    found: dict[str, LogitDifference] = {}
    for name, each in read_json(path).items():
        told: dict[str, Any] = each if isinstance(each, dict) else {}
        values = {ours: _number(told.get(theirs)) for ours, theirs in COEFFICIENTS.items()}
        if not all(map(isfinite, values.values())):
            raise BadFile(
                f"{path}: {name[:40]!r} needs {', '.join(COEFFICIENTS.values())} as numbers."
            )
        r2, source = _number(told.get("score")), {"source": path.name}
        found[name] = LogitDifference(**values, r2=r2, n=0, conditions={}, source=source)
    return found


def _number(value: object) -> float:
    """A JSON number; NaN for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return nan
    try:
        return float(value)
    except OverflowError:
        return nan


def plain_coefficients(alignment: VariableAlignment) -> dict[str, float]:
    """Those of an alignment, by the file's names.

    Raises:
        BadUsage: it has none.
    """
    linear = alignment.coefficients
    if linear is None:
        raise BadUsage(
            f"{alignment.variable} of {alignment.model}: the linear causal model needs its"
            " coefficients."
        )
    return {theirs: float(getattr(linear, ours)) for ours, theirs in COEFFICIENTS.items()}
