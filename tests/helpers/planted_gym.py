"""A model in which one direction says the number of a noun, and a task that asks for it.

The noun's token has +v or -v, and a direction of its own; block 1 copies what v says to u at every
later token; the last norm, made linear by a large constant, and the unembedding read u alone. So

    resid.0@noun    v         resid.1@noun    nothing
    resid.0@last    nothing   resid.1@last, resid.2@last    u
"""

from __future__ import annotations

from typing import Any

import torch

from helpers.tiny_gguf import of_words
from mechassay.features.featurizer import random_basis
from mechassay.gym import GymTask, gym_tasks
from mechassay.models.model import Model, make_model
from mechassay.testing import tiny

WORDS = {
    "one": ["cat", "dog", "hen", "boy", "girl", "king", "cook", "monk"],
    "many": ["cats", "dogs", "hens", "boys", "girls", "kings", "cooks", "monks"],
}
PLACES = ["here", "there", "inside", "outside", "upstairs", "downstairs", "alone", "together"]
TIMES = ["today", "again", "always", "often", "rarely", "now", "still", "later"]
TURN = random_basis(32, torch.Generator().manual_seed(5), torch.float64)
V, U, CONSTANT, NUISANCE = TURN[:, 0], TURN[:, 1], TURN[:, 2], TURN[:, 3:]


def planted_task(*, unequal: bool = False) -> GymTask:
    """The task; with unequal lengths nouns of many have a word before them."""
    nouns = {**WORDS, "many": [f"here {word}" if unequal else word for word in WORDS["many"]]}
    data = {
        "template": "The {noun} {place} {time}",
        "labels": {"one": "is", "many": "are"},
        "options": {"noun": nouns, "place": PLACES, "time": TIMES},
    }
    return gym_tasks({"tasks": {"planted": data}})["planted"]


def planted_model(dtype: torch.dtype = torch.float64) -> Model:
    hf: Any = tiny.build("mistral", dtype)
    hf.config.sliding_window = None
    nouns = [word for words in WORDS.values() for word in words]
    tokenizer = of_words([*nouns, *PLACES, *TIMES, "The is are dog give"])
    ids = tokenizer.get_vocab()
    embedding = torch.zeros(tiny.VOCABULARY, 32, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(tiny.VOCABULARY, NUISANCE.shape[1], generator=generator).double()
    embedding += 0.4 * noise @ NUISANCE.T + 60 * CONSTANT
    for word in WORDS["one"]:
        embedding[ids[word]] += 3 * V
    for word in WORDS["many"]:
        embedding[ids[word]] -= 3 * V
    hf.model.embed_tokens.weight.copy_(embedding.to(dtype))
    for number, layer in enumerate(hf.model.layers):
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        layer.input_layernorm.weight.fill_(1.0)
        if number == 1:
            # Every token looks at all tokens alike.
            layer.self_attn.q_proj.weight.zero_()
            layer.self_attn.v_proj.weight.zero_()
            layer.self_attn.v_proj.weight[0].copy_(V.to(dtype))
            layer.self_attn.o_proj.weight[:, 0].copy_((40 * U).to(dtype))
    hf.model.norm.weight.fill_(1.0)
    head = torch.zeros_like(embedding)
    head[ids["is"]], head[ids["are"]] = 4 * U, -4 * U
    hf.lm_head.weight.copy_(head.to(dtype))
    return make_model(hf, tokenizer, name="planted")
