"""Writing and reading text under interventions: steered generation, and its price in perplexity.

An intervention holds at positions of the prompt ("last", a number), at every token that is written
("new"), or at both ("all"). Of a text that is only read, "all" is every token and "last" the last.
Values come from the text's own run; what needs a source run is refused here (see `intervene`).

    perplexity = exp(mean over tokens of -log p(token | tokens before it))      per text, token 2 on
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.errors import BadPairs, BadUsage
from mechassay.interventions.intervention import (
    Add,
    Intervention,
    Interventions,
    Replace,
    by_site,
    changed_values,
    check_interventions,
    first_token,
)
from mechassay.interventions.site import ALL, LAST, Site
from mechassay.models.forward import Edit, Place, forward
from mechassay.models.generation import generate as write
from mechassay.models.generation import never_edited, until_end
from mechassay.models.memory import out_of_memory_is_an_error, token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.prompts.batch import left_padded
from mechassay.prompts.tokenization import encode
from mechassay.stats.intervals import Estimate, student_interval
from mechassay.utils.arguments import checked
from mechassay.utils.display import BAR, OneLine, Progress, Tabular, html_facts, html_table

NEW = "new"
ROWS = 256
"""Rows of logits held at once."""
SHOWN = 10
"""Texts that a notebook shows."""


@dataclass(frozen=True, eq=False, repr=False)
class Generated(OneLine, Tabular):
    """What a model writes after prompts.

    Attributes:
        tokens: ids that were written, up to the end of text.
        texts: the same as text; empty without a tokenizer.
        ids: of rows whose prompt and text do not give the same tokens when they are encoded again
            (a token may be part of a character), all token ids, the prompt's too; () of others.
    """

    prompts: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    sites: tuple[str, ...] = ()
    ids: tuple[tuple[int, ...], ...] = ()

    def columns(self) -> dict[str, list[Any]]:
        """Return the prompts, the written texts, and the token ids if a text does not give them."""
        columns: dict[str, list[Any]] = {"prompt": list(self.prompts), "written": list(self.texts)}
        return {**columns, "token ids": list(self.ids)} if any(self.ids) else columns

    def _repr_html_(self) -> str:
        columns = self.columns()
        if "token ids" in columns:
            columns["token ids"] = [" ".join(map(str, row)) for row in self.ids]
        rows = list(zip(*columns.values(), strict=False))[:SHOWN]
        table = html_table(tuple(columns), rows)
        return html_facts(", ".join(self.sites) or "no intervention", {}, table)


@checked
def generate(
    model: Model,
    prompts: Sequence[str] | str | Sequence[Sequence[int]],
    interventions: Interventions | None = None,
    *,
    n: int = 20,
    sample: bool = False,
    temperature: float = 1.0,
    seed: int = 0,
    progress: Progress = BAR,
) -> Generated:
    """Write on after prompts under interventions: greedily, or sampled from a seed.

    Of the model's generation configuration only the ids that end a text are followed: no penalty of
    repetitions, no forced or suppressed tokens, no beams. Text ends before end-of-text, whose id is
    not in `tokens`.

        steered = ma.generate(model, "I think that", {"resid.9@all": ma.Add(v, 4.0)}, n=20)

    Args:
        model: a loaded model, see `load_model`.
        prompts: one text or several, or token ids where the model has no tokenizer.
        interventions: by site. Positions are "all" (every token of the prompt, and every new one),
            "new", "last" (of the prompt) or a number of the prompt's tokens.
        n: the most tokens to write after each prompt.
        sample: draw tokens instead of taking the likeliest.
        temperature: divides the logits of what is sampled.
        seed: of what is sampled.
        progress: `SILENT` shows no bar.

    Returns:
        The new text and the token ids after each prompt.

    Raises:
        BadUsage: a site that the model does not have, an intervention that needs a source run or
            returns another shape, nothing to write.
        BadPairs: a prompt without such a position; a token id that the model does not have.
        NonFinite: an intervention returns NaN.
    """
    chosen = _chosen(model, interventions)
    rows, continuations = _token_rows(model, prompts, "generate")
    ends = _ends(model)
    generator = torch.Generator().manual_seed(seed) if sample else None
    longest = max(map(len, rows)) + n
    size = max(1, token_budget(trace_bytes(model.decoder), longest, model.device) // longest)
    written: list[list[int]] = []
    with progress.track("writing", len(rows)) as advance, out_of_memory_is_an_error("Writing"):
        for begin in range(0, len(rows), size):
            part = rows[begin : begin + size]
            tokens, mask = (x.to(model.device) for x in _table(part))

            names = [f"Prompt {begin + row}" for row in range(len(part))]

            def edits(start: int, mask: Tensor = mask, names: Sequence[str] = names) -> Edit:
                if start == 0:
                    return _edit(chosen, _prompt_tokens(chosen, mask, names))
                every = mask.new_ones((len(mask), 1))
                new = {site: every for site in chosen if site.position in (ALL, NEW)}
                return _edit(chosen, new)

            new_tokens = write(
                model.decoder,
                tokens,
                mask,
                n,
                end=ends,
                generator=generator,
                temperature=temperature,
                edits=edits if chosen else never_edited,
            )
            written += [until_end(row, ends) for row in new_tokens.tolist()]
            advance(len(part))
    tokenizer = model.tokenizer
    texts = () if tokenizer is None else tuple(_continuations(tokenizer, rows, written))
    whole = [(*row, *new) for row, new in zip(rows, written, strict=True)]
    ids: tuple[tuple[int, ...], ...] = ()
    if tokenizer is not None:
        joined = [prompt + text for prompt, text in zip(continuations, texts, strict=True)]
        again = [(*model.prepend, *own) for own in encode(tokenizer, joined)]
        ids = tuple(() if a == b else b for a, b in zip(again, whole, strict=True))
    new_tokens = tuple(map(tuple, written))
    return Generated(continuations, new_tokens, texts, tuple(map(str, chosen)), ids)


def _continuations(
    tokenizer: Any, rows: Sequence[Sequence[int]], written: Sequence[Sequence[int]]
) -> list[str]:
    """What is written, as text: a token's text may depend on what stands before it."""
    before = tokenizer.batch_decode([list(row) for row in rows])
    pairs = zip(rows, written, strict=True)
    after = tokenizer.batch_decode([[*row, *new] for row, new in pairs])
    return [text[len(start) :] for start, text in zip(before, after, strict=True)]


@dataclass(frozen=True, eq=False, repr=False)
class Perplexity(OneLine, Tabular):
    """How well a model predicts texts, with and without interventions; in nats a token.

    Attributes:
        nll, base_nll: mean -log p of each text's tokens from the second on, with and without.
        n_tokens: how many these are.
    """

    sites: tuple[str, ...]
    nll: Float[np.ndarray, "n"]
    base_nll: Float[np.ndarray, "n"]
    n_tokens: tuple[int, ...]

    def repr_fields(self) -> dict[str, Any]:
        return {"n": len(self.nll), "perplexity": self.value, "without": self.base_value}

    @property
    def value(self) -> float:
        """Perplexity with the interventions, over all tokens of all texts."""
        return math.exp(float(np.average(self.nll, weights=self.n_tokens)))

    @property
    def base_value(self) -> float:
        """Perplexity without."""
        return math.exp(float(np.average(self.base_nll, weights=self.n_tokens)))

    @property
    def increase(self) -> Estimate:
        """Mean over texts of nll - base_nll, in nats a token, with its 95 % interval."""
        change = self.nll - self.base_nll
        low, high, _ = student_interval(change)
        return Estimate(float(change.mean()), low, high)

    def columns(self) -> dict[str, list[Any]]:
        """A row a text."""
        numbers = {"nll": self.nll.tolist(), "nll_without": self.base_nll.tolist()}
        return {**numbers, "n_tokens": list(self.n_tokens)}

    def _repr_html_(self) -> str:
        facts = {"perplexity": f"{self.value:.4g}", "without": f"{self.base_value:.4g}"}
        return html_facts(", ".join(self.sites) or "no intervention", facts)


@checked
@torch.no_grad()
def perplexity(
    model: Model,
    texts: Sequence[str] | str | Sequence[Sequence[int]],
    interventions: Interventions | None = None,
    *,
    progress: Progress = BAR,
) -> Perplexity:
    """Measure how well a model predicts texts under interventions.

    Args:
        model: a loaded model, see `load_model`.
        texts: one text or several, or token ids.
        interventions: by site; positions are "all", "last" or a number of the text's tokens.

    Raises:
        BadPairs: a text of fewer than two tokens, or of more than the model has positions. Others
            as `generate`.
    """
    chosen = _chosen(model, interventions)
    rows, _ = _token_rows(model, texts, "perplexity")
    for number, row in enumerate(rows):
        if len(row) < 2:
            raise BadPairs(f"Text {number} has {len(row)} tokens; perplexity needs two or more.")
        model.check_length(f"Text {number}", len(row))
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    longest = max(map(len, rows))
    size = max(1, token_budget(trace_bytes(model.decoder), longest, model.device) // longest)
    values = np.full((2, len(rows)), math.nan)
    with progress.track("reading", len(rows)) as advance, out_of_memory_is_an_error("Reading"):
        for begin in range(0, len(order), size):
            part = order[begin : begin + size]
            tokens, mask = (x.to(model.device) for x in _table([rows[i] for i in part]))
            edit = _edit(chosen, _prompt_tokens(chosen, mask, [f"Text {i}" for i in part]))
            values[:, part] = [
                _nll(model, tokens, mask, edit_or_none) for edit_or_none in (edit, None)
            ]
            advance(len(part))
    return Perplexity(
        tuple(map(str, chosen)), values[0], values[1], tuple(len(row) - 1 for row in rows)
    )


def _nll(
    model: Model, tokens: Tensor, mask: Bool[Tensor, "n pos"], edit: Edit | None
) -> Float[np.ndarray, "n"]:
    """Mean -log p of the tokens of each text but its first."""
    decoder = model.decoder
    ctx = decoder.context(mask)
    x = decoder.add_positions(decoder.embed(tokens), ctx)
    if edit is None:
        final = forward(decoder, x, ctx)
    else:
        final = edit("stream", len(decoder.layers), forward(decoder, x, ctx, edit=edit))
    # A token is read where the one before it is real too.
    real = mask[:, :-1] & mask[:, 1:]
    streams, targets = final[:, :-1][real], tokens[:, 1:][real]
    parts = [
        decoder.readout(some).all().log_softmax(-1).gather(1, want[:, None])[:, 0]
        for some, want in zip(streams.split(ROWS), targets.split(ROWS), strict=True)
    ]
    log_probs = torch.zeros(real.shape, dtype=torch.float64, device=model.device)
    log_probs[real] = torch.cat(parts).double()
    return (-log_probs.sum(1) / real.sum(1)).cpu().numpy()


# Interventions as edits of whole rows.


def _chosen(model: Model, given: Interventions | None) -> dict[Site, Intervention]:
    """The interventions by site, none of which needs a source."""
    if not given:
        return {}
    chosen = by_site(given)
    check_interventions(model, chosen)
    for site, intervention in chosen.items():
        if intervention.needs_source:
            raise BadUsage(
                f"Site {site}: {type(intervention).__name__} needs a source run, which text alone"
                " does not have; use Add, Ablate, Replace or Scale here, or intervene()."
            )
        if isinstance(intervention, Add | Replace) and intervention.vector.ndim > 1:
            raise BadUsage(
                f"Site {site}: {type(intervention).__name__} needs one vector for all texts;"
                f" got shape {tuple(intervention.vector.shape)}."
            )
        if isinstance(site.position, str) and site.position not in (ALL, LAST, NEW):
            raise BadUsage(
                f"Site {site}: positions in a text are all, new, last or a number; got"
                f" {site.position!r}."
            )
    return chosen


def _prompt_tokens(
    chosen: Mapping[Site, Intervention], mask: Bool[Tensor, "n pos"], names: Sequence[str]
) -> dict[Site, Bool[Tensor, "n pos"]]:
    """The tokens of prompts at which each site is; names are for messages."""
    lengths, width = mask.sum(1), mask.shape[1]
    masks: dict[Site, Tensor] = {}
    for site in chosen:
        if site.position == ALL:
            start = width - lengths[:, None] + first_token(chosen[site])
            masks[site] = mask & (torch.arange(width, device=mask.device) >= start)
        elif site.position != NEW:
            at = -1 if site.position == LAST else int(site.position)
            column = (width - lengths if at >= 0 else torch.full_like(lengths, width)) + at
            outside = (column < width - lengths) | (column >= width)
            if bool(outside.any()):
                row = int(outside.int().argmax())
                raise BadPairs(
                    f"{names[row]} has tokens 0 to {int(lengths[row]) - 1}; got position {at}."
                )
            masks[site] = torch.zeros_like(mask).scatter(1, column[:, None], True)
    return masks


def _edit(
    chosen: Mapping[Site, Intervention], tokens: Mapping[Site, Bool[Tensor, "n pos"]]
) -> Edit:
    """The interventions at some tokens as an edit of a forward pass."""
    places: dict[tuple[str, int], list[Site]] = {}
    for site in tokens:
        places.setdefault(site.place, []).append(site)

    def edit(place: Place, layer: int, value: Tensor) -> Tensor:
        for site in places.get((place, layer), ()):
            value = _changed(site, chosen[site], value, tokens[site])
        return value

    return edit


def _changed(
    site: Site, intervention: Intervention, value: Tensor, tokens: Bool[Tensor, "n pos"]
) -> Tensor:
    """A value of the forward pass, [n, pos, d] or heads' mixes [n, heads, pos, d_head]."""
    if site.part != "heads":
        new = changed_values(site, intervention, value[tokens], None)
        return value.masked_scatter(tokens[..., None], new)
    heads = list(site.heads) or list(range(value.shape[1]))
    mixes = value.transpose(1, 2).clone()
    some = mixes[:, :, heads].flatten(2)
    some[tokens] = changed_values(site, intervention, some[tokens], None)
    mixes[:, :, heads] = some.unflatten(2, (len(heads), -1))
    return mixes.transpose(1, 2)


# Texts as tokens.


def _token_rows(
    model: Model, given: Sequence[str] | str | Sequence[Sequence[int]], who: str
) -> tuple[list[list[int]], tuple[str, ...]]:
    """Texts or token ids as rows of ids, and as text where there is a tokenizer."""
    model.check_unchanged()
    texts = [given] if isinstance(given, str) else list(given)
    if not texts:
        raise BadUsage(f"{who} needs one text or more; got none.")
    strings = [text for text in texts if isinstance(text, str)]
    if not strings:
        rows = _checked_ids(model, texts, who)
        decoded = (
            [""] * len(rows) if model.tokenizer is None else model.tokenizer.batch_decode(rows)
        )
        return rows, tuple(map(str, decoded))
    if model.tokenizer is None or len(strings) < len(texts):
        raise BadUsage(
            f"{who} takes texts for a model with a tokenizer, or rows of token ids; {model.name}"
            f" has {'no' if model.tokenizer is None else 'a'} tokenizer."
        )
    return [[*model.prepend, *ids] for ids in encode(model.tokenizer, strings)], tuple(strings)


def _checked_ids(model: Model, given: Sequence[Any], who: str) -> list[list[int]]:
    """Rows of token ids that the model has."""
    if not all(isinstance(row, Sequence | Tensor) for row in given):
        raise BadUsage(f"{who} takes a row of token ids for every text; got {given!r}.")
    rows = [list(map(int, row)) for row in given]
    vocabulary = len(model.decoder.embedding)
    for number, row in enumerate(rows):
        strange = next((token for token in row if not 0 <= token < vocabulary), None)
        if strange is not None:
            raise BadPairs(
                f"Text {number} has the token id {strange}; {model.name} has 0 to {vocabulary - 1}."
            )
    return rows


def _table(rows: Sequence[list[int]]) -> tuple[Tensor, Bool[Tensor, "n pos"]]:
    """Rows as a left-padded table and its mask."""
    width = max(map(len, rows))
    ones = [[1] * len(row) for row in rows]
    return left_padded(rows, width, 0), left_padded(ones, width, 0).bool()


def _ends(model: Model) -> frozenset[int]:
    """End-of-text tokens: those of the model's generation settings, else the tokenizer's."""
    settings = getattr(model.hf, "generation_config", None)
    ids = getattr(settings, "eos_token_id", None)
    if ids is None and model.tokenizer is not None:
        ids = model.tokenizer.eos_token_id
    return frozenset(map(int, [ids] if isinstance(ids, int) else ids or []))
