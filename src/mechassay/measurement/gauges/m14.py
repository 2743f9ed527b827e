"""M14, safety SVE: the stream at the last token of harmful and harmless requests, at all layers.

Layers are the streams behind each block. A pair's texts end with the same token, so that what they
differ in at the last token has come there through the model. The page leaves prompts and position
open; both of its classes have the prompts of the first contrast here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float

from mechassay.alignment import encode
from mechassay.errors import BadFile, BadUsage
from mechassay.interventions.base_run import site_values
from mechassay.interventions.site import sites
from mechassay.measurement.contrasts import CONTROL, SAFETY, PromptContrast, load_contrasts
from mechassay.measurement.formulas import subspace as formula
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable
from mechassay.measurement.variant import Flag
from mechassay.models.model import Model
from mechassay.pairs import left_padded
from mechassay.records import Table
from mechassay.stats.intervals import student_interval


@dataclass(frozen=True)
class SafetySubspace:
    """Do the directions that tell harmful from harmless requests span a compact, stable space?

    Attributes:
        n_prompts: of each class, of the published definition.
        n_stability_runs: subsets of them.
        file: other contrasts, see `measurement.contrasts`; "" has those of the package.
    """

    n_prompts: int = 30
    n_stability_runs: int = 5
    file: str = ""

    id: ClassVar[str] = formula.ID
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("names",)

    def __post_init__(self) -> None:
        if self.n_prompts < 2 or self.n_stability_runs < 2:
            raise BadUsage(
                f"M14 needs two prompts a class or more, and two subsets of them; got"
                f" {self.n_prompts} and {self.n_stability_runs}."
            )

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`.

        Raises:
            BadFile: a file without the two contrasts.
        """
        contrasts = load_contrasts(self.file or None)
        lacking = [name for name in (SAFETY, CONTROL) if name not in contrasts]
        if lacking:
            raise BadFile(
                f"{self.file}: M14 needs the contrasts {SAFETY} and {CONTROL}; it has"
                f" {', '.join(contrasts) or 'none'}."
            )
        safety, control = contrasts[SAFETY], contrasts[CONTROL]
        flags: list[Flag] = []
        rows: list[dict[str, Any]] = []
        values: list[Float[np.ndarray, "n layers d"]] = []
        texts = (safety.first, safety.second, control.first, control.second)
        with inputs.progress.track("M14", sum(map(len, texts))) as advance:
            for contrast in (safety, control):
                tokens = [
                    token_ids(inputs.model, each) for each in (contrast.first, contrast.second)
                ]
                row, found = _lengths(contrast, *tokens)
                rows.append(row)
                flags += found
                for each in tokens:
                    values.append(last_token_values(inputs.model, each))
                    advance(len(each))
        return formula.safety_subspace(
            *values,
            groups=safety.topics,
            control_groups=control.topics,
            n_prompts=self.n_prompts,
            n_stability_runs=self.n_stability_runs,
            seed=inputs.seed,
            flags=flags,
            tables=[Table.of("contrasts", ("contrast",), rows)],
        )

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS // 4, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is pairs, of ten topics."""
        return formula.null(60 if n is None else n, 10, n_simulations, seed)


def token_ids(model: Model, texts: Sequence[str]) -> list[list[int]]:
    """The token ids of texts, behind those that the model puts before every prompt.

    Raises:
        BadUsage: the model has no tokenizer.
    """
    tokenizer: Any = model.tokenizer
    if tokenizer is None:
        raise BadUsage(f"M14 reads questions, for which {model.name} has no tokenizer.")
    return [[*model.prepend, *ids] for ids in encode(tokenizer, texts)]


def last_token_values(model: Model, tokens: Sequence[list[int]]) -> Float[np.ndarray, "n layers d"]:
    """The stream behind each block at the last token, in fp64."""
    width = max(map(len, tokens))
    table = left_padded(tokens, width, 0)
    mask = torch.arange(width) >= width - torch.tensor([len(row) for row in tokens])[:, None]
    rows = torch.arange(len(tokens), device=model.device)
    last = torch.full_like(rows, width - 1)
    found = site_values(model, table, mask, [(site, rows, last) for site in sites(model)])
    return torch.stack(found, dim=1).double().cpu().numpy()


def _lengths(
    contrast: PromptContrast, first: list[list[int]], second: list[list[int]]
) -> tuple[dict[str, Any], list[Flag]]:
    """A row of the table of contrasts, and what may tell their classes apart beside the topic."""
    more = np.array([len(a) - len(b) for a, b in zip(first, second, strict=True)], dtype=float)
    ends = student_interval(more)
    flags: list[Flag] = []
    if not ends.contains(0.0):
        flags.append(
            Flag(
                "lengths_differ",
                f"{contrast.name}: texts that are {contrast.classes[0]} have {more.mean():+.2f}"
                " tokens more on average: what tells the classes apart may be length.",
            )
        )
    apart = sum(a[-1] != b[-1] for a, b in zip(first, second, strict=True))
    if apart:
        flags.append(
            Flag(
                "last_tokens_differ",
                f"{contrast.name}: {apart} pairs end with different tokens, which alone may tell"
                " them apart.",
            )
        )
    return {
        "contrast": contrast.name,
        "classes": " against ".join(contrast.classes),
        "pairs": len(contrast),
        "topics": len(set(contrast.topics)),
        "tokens more": float(more.mean()),
        "low": ends.low,
        "high": ends.high,
        "of equal length": float(np.mean(more == 0)),
    }, flags
