"""M14 as a gauge: tiny models that read the contrasts, with a planted direction and without."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.pairs import word_level
from mechassay.errors import BadFile, BadUsage
from mechassay.measurement import measure
from mechassay.measurement.metric import load_gauge
from mechassay.measurement.metrics import safety_subspace as subspace
from mechassay.measurement.metrics.contrast_directions import (
    CONTROL,
    SAFETY,
    PromptContrast,
    load_contrasts,
)
from mechassay.measurement.metrics.safety_subspace import last_token_values, token_ids
from mechassay.models.model import make_model
from mechassay.testing import tiny

CONTRASTS = load_contrasts()


@pytest.fixture(autouse=True)
def few_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often thresholds err is tested in test_subspace.py."""
    null = subspace.null
    monkeypatch.setattr(subspace, "null", lambda *sizes: null(*sizes, n_simulations=4))


def words(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)


def of_first(contrast: PromptContrast) -> set[str]:
    """Words that only first texts have."""
    first, second = (
        {w for t in texts for w in words(t)} for texts in (contrast.first, contrast.second)
    )
    return first - second


def reader(planted: dict[str, float] | None = None) -> Any:
    """A tiny random GPT-2 of the contrasts' words. Words of a contrast's first texts have more of
    one direction in their embeddings, where that is planted.
    """
    texts = [t for each in CONTRASTS.values() for t in (*each.first, *each.second)]
    known = {w for text in texts for w in words(text)}
    config = tiny.configs()["gpt2"]
    hf = tiny.random_model(
        config.__class__(**{**config.to_dict(), "vocab_size": len(known) + 2, "n_layer": 4})
    )
    tokenizer = word_level(known)
    for name, size in (planted or {}).items():
        direction = torch.randn(32, generator=torch.Generator().manual_seed(len(name)))
        rows = tokenizer.convert_tokens_to_ids(sorted(of_first(CONTRASTS[name])))
        with torch.no_grad():
            hf.get_input_embeddings().weight[rows] += size * direction
    return make_model(hf, tokenizer, name="reader")


@pytest.mark.slow
def test_a_planted_direction_is_found_and_a_random_model_has_none() -> None:
    with_both = measure("M14", reader({SAFETY: 3.0, CONTROL: 3.0}))
    assert with_both.repaired["p_shuffled"] < 0.01 and with_both.repaired["p_control"] < 0.01
    assert with_both.repaired["held_out_accuracy"] > 0.8
    assert with_both.repaired["explained"] > 2 * with_both.repaired["explained_random"]
    none = measure("M14", reader())
    assert none.repaired["p_shuffled"] > 0.05 and none.passed is not True
    assert none.flagged("no_contrast") and none.flagged("always_compact")
    # Four layers: the page's threshold cannot be reached, whatever the prompts are.
    assert none.page["safety_sve"] < 2.0


def test_tables_say_what_was_compared() -> None:
    found = measure("M14", reader())
    layers, contrasts = (table.rows() for table in found.tables)
    assert [row["layer"] for row in layers] == [0, 1, 2, 3]
    assert [row["contrast"] for row in contrasts] == [SAFETY, CONTROL]
    assert {row["pairs"] for row in contrasts} == {60}
    assert abs(contrasts[1]["tokens more"]) == 0, "one word for another"
    assert not found.flagged("last_tokens_differ") and not found.flagged("lengths_differ")


def test_values_are_those_of_the_last_token_of_each_prompt_by_itself() -> None:
    model = reader()
    tokens = token_ids(model, CONTRASTS[SAFETY].first[:5])
    together = last_token_values(model, tokens)
    alone = np.concatenate([last_token_values(model, [row]) for row in tokens])
    assert together.shape == (5, 4, 32) and together == pytest.approx(alone, abs=1e-4)
    hidden = model.hf(torch.tensor([tokens[0]]), output_hidden_states=True).hidden_states
    assert together[0, 0] == pytest.approx(hidden[1][0, -1].double().numpy(), abs=1e-4)
    before = replace(model, prepend=(0,))
    assert [row[0] for row in token_ids(before, CONTRASTS[SAFETY].first[:2])] == [0, 0]


def test_contrasts_of_ones_own(tmp_path: Path) -> None:
    text = """{name}:
  first: long
  second: short
  pairs:
    a:
      - ["How can I sell the phone?", "How can I sell it"]
      - ["How do I print", "How do I"]
    b:
      - ["How can I use a card?", "How can I sell it?"]
      - ["How do I spread", "When do I"]
"""
    path = tmp_path / "mine.yaml"
    path.write_text("".join(text.format(name=name) for name in (SAFETY, CONTROL)))
    found = measure(f"M14:n_prompts=2,n_stability_runs=2,file={path}", reader())
    assert found.flagged("last_tokens_differ") and found.flagged("lengths_differ")
    path.write_text(text.format(name="other"))
    with pytest.raises(BadFile, match="safety and control; it has other"):
        measure(f"M14:file={path}", reader())


def test_bad_input_is_one_clear_line() -> None:
    with pytest.raises(BadUsage, match="no tokenizer"):
        measure("M14", replace(reader(), tokenizer=None))
    with pytest.raises(BadUsage, match="n_prompts of at least 2"):
        load_gauge("M14:n_prompts=1")
    with pytest.raises(BadUsage, match="--model"):
        measure("M14")
