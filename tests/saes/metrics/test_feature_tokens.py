"""Held-out values: of all test documents, of the given site, and read by what is compared.

Metrics of dictionaries on a model whose stream is its embedding, where answers are known.

Overlaps of rankings worked by hand, their slow version, and features without tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import tiny_models
from helpers.texts import word_corpus
from mechassay.errors import BadUsage
from mechassay.features.featurizer import Directions
from mechassay.features.sae import SAE
from mechassay.interventions.site import Site
from mechassay.measurement import measure
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.metric import GaugeInputs
from mechassay.models.model import Model, make_model
from mechassay.saes import ActivationStore, StoreSettings, store_activations
from mechassay.saes.feature_matching import random_sae
from mechassay.saes.metrics.feature_tokens import (
    Described,
    TokenSample,
    agreement_quantities,
    by_word,
    feature_counts,
    held_out,
    jaccard,
    padded_top,
    promoted_scores,
    token_activations,
    token_agreement,
    top_tokens,
    words_of,
)
from mechassay.saes.synthetic import SITE, PlantedTrainer, plant
from mechassay.testing import tiny
from mechassay.truth.ground_truth import load_truth
from mechassay.utils.display import SILENT

SOME = plant(documents=320, window=4)


def given(**more: Any) -> dict[str, Any]:
    sae = SOME.sae()
    about = {"sae": sae, "other sae": (sae, SOME.sae(wide=True)), "texts": SOME.store()}
    return {**about, "trainer": PlantedTrainer(SOME), **more}


def test_held_out_values_are_of_all_test_documents() -> None:
    store = SOME.store()
    assert len(store.shards("test")) == 2
    # The defect: about so many values are one shard, the first.
    assert store.shards("test", 100) == [0]
    found, values = held_out(GaugeInputs(more={"texts": store}), rows=100), store.values("test")
    assert len(found) == 100 and torch.equal(found[0], values[0])
    assert torch.equal(found[-1], values[-1])
    places = (found[:, None] == values[None]).all(2).float().argmax(1)
    assert int(places.diff().min()) >= 3 and int(places.diff().max()) <= 4
    assert torch.equal(held_out(GaugeInputs(more={"texts": store})), values)


@pytest.mark.parametrize("metric", ["M07", "M09", "M11"])
def test_activations_of_another_site_are_refused(metric: str) -> None:
    bare = replace(SOME.sae(), hook="")
    with pytest.raises(BadUsage, match=r"activations are of resid\.0.*got the site resid\.1"):
        # Dictionaries that do not say where they were trained.
        measure(metric, site=Site(1, "all"), more=given(**{"sae": bare, "other sae": (bare,)}))
    with pytest.raises(BadUsage, match="needs stored activations of texts"):
        measure(metric, site=SITE, more=given(texts=SOME.values))


@pytest.mark.parametrize("metric", ["M07", "M11"])
def test_activations_of_another_model_are_refused(metric: str) -> None:
    model = load_truth("truth-ioi").model
    sae = plant(d=model.decoder.d_model).sae()
    about = given(**{"sae": sae, "other sae": (sae,)})
    with pytest.raises(BadUsage, match="not of this model"):
        measure(metric, model, site=SITE, more=about)


def test_a_trainer_on_other_values_is_refused() -> None:
    trainer = PlantedTrainer(SOME)
    other = SimpleNamespace(train=trainer.train, store=plant(seed=5).store())
    with pytest.raises(BadUsage, match="trainer's dictionaries are of resid.0"):
        measure("M09", site=SITE, more=given(trainer=other))
    same = SimpleNamespace(train=trainer.train, store=SOME.store())
    assert measure("M09", site=SITE, more=given(trainer=same)).id == "M09"


WINDOW = StoreSettings(window=12, test=0.4, dtype="float32")
N = 24


@dataclass(frozen=True)
class Toy:
    """A model whose layers write nothing, and values of its stream: embeddings of words.

    Attributes:
        words: tokens that occur in train and test documents.
    """

    model: Model
    store: ActivationStore
    words: Tensor

    def sae(self, shift: int | None, bias: float = 0.8) -> SAE:
        """Feature j reads the j-th of `N` words and writes the word `shift` places further on in
        the vocabulary; None: it writes what it reads, as the model embeds it.
        """
        decoder, own = self.model.decoder, self.words[:N]
        embedded = decoder.embedding[own].detach()
        written = (
            embedded
            if shift is None
            else decoder.unembedding[(own + shift) % len(decoder.unembedding)]
        )
        d = embedded.shape[1]
        return SAE(
            embedded.mT.contiguous(),
            written.detach().clone(),
            torch.full((N,), -bias),
            torch.zeros(d),
            hook="resid.0",
        )

    def measured(self, metric: str, sae: Any, **more: Any) -> Measurement:
        return measure(
            metric, self.model, sae=sae, site="resid.0", more={"texts": self.store, **more}
        )


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    hf, tokenizer = tiny_models.with_words()
    wide: Any = tiny.random_model(
        hf.config.__class__(
            **{
                **hf.config.to_dict(),
                "hidden_size": 64,
                "head_dim": 16,
                "tie_word_embeddings": False,
            }
        ),
        seed=0,
    )
    drawn = torch.Generator().manual_seed(1234)
    with torch.no_grad():
        for layer in wide.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        for matrix in (wide.model.embed_tokens.weight, wide.lm_head.weight):
            rows = torch.randn(matrix.shape, generator=drawn)
            matrix.copy_(rows / rows.norm(dim=1, keepdim=True))
        wide.model.norm.weight.fill_(1.0)
    model = make_model(wide, tokenizer)
    folder = tmp_path_factory.mktemp("stores")
    corpus = word_corpus(documents=40, words=160)
    store = store_activations(model, "resid.0", corpus, folder, WINDOW, progress=SILENT)
    seen = [TokenSample.of(store, x, None).tokens for x in ("train", "test")]
    return Toy(model, store, seen[0][torch.isin(seen[0], seen[1])])


def worthless(toy: Toy, k: int = 2) -> SAE:
    return random_sae(toy.model.decoder.d_model, 4 * N, k, torch.zeros(64), seed=3)


# --- what features do at tokens


def test_values_stand_at_their_tokens(toy: Toy) -> None:
    sample = TokenSample.of(toy.store, "test", None)
    embedded = toy.model.decoder.embedding[sample.tokens[sample.index]]
    assert torch.allclose(sample.values, embedded, atol=1e-6)
    after = sample.next_tokens().view(-1, sample.length)
    assert (after[:, -1] == -1).all()
    assert torch.equal(after[:, :-1], sample.windows[:, 2:]), "position 0 is dropped"
    assert int(sample.counts.sum()) == len(sample.values)
    some = TokenSample.of(toy.store, "test", 100)
    assert len(some.values) == len(some.document) == len(some.index)


def test_activations_of_tokens_one_at_a_time(toy: Toy) -> None:
    sample, sae = TokenSample.of(toy.store, "test", None), worthless(toy)
    features = torch.tensor([5, 0, 9])
    f = sae.encode(sample.values)[:, features]
    largest, mean = (token_activations(sae, sample, features, x) for x in ("largest", "mean"))
    for place in (0, 7, len(sample.tokens) - 1):
        own = f[sample.index == place]
        assert torch.allclose(largest[:, place], own.max(dim=0).values)
        assert torch.allclose(mean[:, place], own.mean(dim=0), atol=1e-6)
    counts = feature_counts(sae, sample.values)
    assert torch.equal(counts, (sae.encode(sample.values) != 0).sum(dim=0))


def test_words_are_tokens_without_case_and_spaces() -> None:
    class Tokenizer:
        def batch_decode(self, ids: list[list[int]]) -> list[str]:
            return [[" New", "new", "York", " ", "  "][i[0]] for i in ids]

    words = words_of(Tokenizer(), torch.arange(5))
    assert words[0] == words[1] and len(words.unique()) == 4
    assert torch.equal(words_of(None, torch.arange(3)), torch.arange(3))
    scores = by_word(torch.tensor([[1.0, 5.0, 2.0, 0.0, -1.0]]), words)
    assert sorted(scores[0].tolist()) == [-1, 0, 2, 5]


def test_lists_are_filled_up() -> None:
    assert padded_top(torch.tensor([[0.0, 2.0, 1.0]]), 2).tolist() == [[1, 2]]
    assert padded_top(torch.tensor([[0.0, 2.0, 0.0]]), 4).tolist() == [[1, -1, -1, -1]]


def test_promoted_tokens_are_those_of_the_unembedding(toy: Toy) -> None:
    decoder, rows = toy.model.decoder, torch.randn(3, 64)
    assert torch.allclose(
        promoted_scores(decoder, rows, folded=False), rows @ decoder.unembedding.mT, atol=1e-5
    )
    halved = replace(decoder, final_norm=replace(decoder.final_norm, weight=torch.full((64,), 0.5)))
    found = promoted_scores(halved, rows, folded=True)
    assert torch.allclose(found, 0.5 * rows @ decoder.unembedding.mT, atol=1e-5)


# --- M08


def test_features_that_read_one_word_and_write_another(toy: Toy) -> None:
    found = toy.measured("M08:top_k=1", toy.sae(shift=7))
    # The defect: both descriptions are right, and the page finds nothing.
    assert (found.page["weight_activation_agreement"] or 0) < 0.1 and found.page.passed is False
    assert found.repaired["input_agreement"] == 1
    assert (found.repaired["output_agreement"] or 0) > 0.9
    assert toy.measured("M08:top_k=1,control=False", toy.sae(shift=7)).repaired.passed is True
    # Near the embedding, weights of any direction describe it: agreement is no evidence there.
    assert found.flagged("random_input_agrees") and found.flagged("random_output_agrees")
    assert found.repaired.passed is None


def test_features_that_write_what_they_read_pass_the_page(toy: Toy) -> None:
    found = toy.measured("M08:top_k=1,control=False", toy.sae(shift=0))
    assert found.page["weight_activation_agreement"] == 1 and found.page.passed is True
    assert found.repaired["input_random_gain"] is None


def test_weights_that_say_nothing(toy: Toy) -> None:
    # Rows are removed from the stream that no one reads: the unembedding is orthogonal to them.
    sae = toy.sae(shift=7)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    shuffled = replace(sae, w_enc=sae.w_enc[order], b_enc=torch.full((N,), -0.1))
    found = toy.measured("M08:top_k=3,control=False", shuffled)
    assert (found.page["weight_activation_agreement"] or 0) < 0.1


def test_a_dictionary_without_active_features(toy: Toy) -> None:
    dead = toy.sae(shift=7, bias=5.0)
    for metric in ("M08:top_k=1", "M10", "EX34"):
        found = toy.measured(metric, dead)
        assert found.page.passed is None and found.passed is not True, metric


# --- M12


def test_a_fixed_number_of_features(toy: Toy) -> None:
    found = toy.measured("M12:n_values=200", worthless(toy, k=3))
    assert found.flagged("fixed_k") and found.page.passed is True
    assert found.repaired["adaptivity"] in (0, None) and found.repaired.passed is False
    assert found.repaired["mean_k"] == 3


def test_features_of_words_are_as_many_as_needed(toy: Toy) -> None:
    # One feature a word: each value needs one and has one.
    decoder = toy.model.decoder
    rows = decoder.embedding.detach().clone()
    n = len(rows)
    sae = SAE(rows.mT.contiguous(), rows * 5, torch.full((n,), -0.8), torch.zeros(64))
    found = toy.measured("M12:n_values=200", sae)
    assert found.repaired["k_mismatch_rate"] == 0 and found.repaired["mean_need"] == 1


# --- M10


def test_contexts_of_words(toy: Toy) -> None:
    found = toy.measured("M10:n_features=6,radius=2,n_contexts=10", worthless(toy))
    rows = found.tables[0].rows()
    assert [row["contexts"] for row in rows] == [10] * 6 and found.repaired["n_undecided"] == 0
    assert found.page["n_dead"] == 0 and found.null is not None
    # Words of the toy occur in few documents.
    assert toy.measured("M10:n_features=6", toy.sae(shift=7)).repaired["n_undecided"] == 6
    assert found.passed is None and found.page.passed is None, "it only reports"


def test_too_few_documents_are_named_as_the_reason(toy: Toy) -> None:
    flags = [
        {flag.name: flag.says for flag in toy.measured(metric, worthless(toy)).flags}
        for metric in ("M10:n_features=3", "M10:n_features=3,rows=60")
    ]
    assert "few_documents" not in flags[0]
    assert "one context of each: 8 are needed" in flags[1]["few_documents"]


def test_an_embedding_of_ones_own_is_used(toy: Toy) -> None:
    seen: list[tuple[int, ...]] = []

    def embed(tokens: Tensor) -> np.ndarray:
        seen.append(tuple(tokens.shape))
        kind = tokens.sum(dim=1) % 3
        noise = torch.randn(len(tokens), 6, generator=torch.Generator().manual_seed(0))
        return (torch.eye(6)[kind] + 0.02 * noise).numpy()

    found = toy.measured("M10:n_features=4,radius=2", worthless(toy), embedding=lambda: embed)
    assert {width for _, width in seen} == {5}
    assert found.repaired["polysemanticity_rate"] is not None


# --- EX34


def test_true_directions_of_words(toy: Toy) -> None:
    found = toy.measured("EX34:n_features=20,top_k=1", toy.sae(shift=None))
    assert (found.repaired["direction_cosine"] or 0) > 0.9
    assert found.repaired["permutation_p"] == 0.001
    assert (found.repaired["direction_over_random_low"] or 0) > 0
    # Nothing follows a word in random texts more often than another word.
    assert found.repaired.passed is False


def test_a_random_dictionary_does_not_pass(toy: Toy) -> None:
    found = toy.measured("EX34:n_features=20,top_k=5", worthless(toy))
    assert found.repaired.passed is False and found.flagged("selection")
    bare = toy.measured("EX34:n_features=20,top_k=5,control=False", toy.sae(shift=None))
    assert bare.repaired["direction_over_random"] is None and bare.passed is not True


# --- bad input


def test_other_inputs_are_refused(toy: Toy, tmp_path: Path) -> None:
    sae = toy.sae(shift=7)
    with pytest.raises(BadUsage, match="autoencoder; got Directions"):
        toy.measured("M08", Directions(torch.eye(64)))
    with pytest.raises(BadUsage, match=r"needs texts.*\(--texts"):
        measure("M12", toy.model, sae=sae, site="resid.0")
    with pytest.raises(BadUsage, match="stored activations of texts"):
        measure("M12", toy.model, sae=sae, more={"texts": ["some text"]})
    with pytest.raises(BadUsage, match="trained on"):
        toy.measured("M10", replace(sae, hook="resid.1"))
    other = replace(sae, hook="")
    with pytest.raises(BadUsage, match=r"are of resid.0.*; got the site"):
        measure("M10", toy.model, sae=other, site="resid.1", more={"texts": toy.store})
    with pytest.raises(BadUsage, match="5 numbers"):
        toy.measured("EX34", random_sae(5, 8, 2, torch.zeros(5)))
    mlp = store_activations(toy.model, "mlp.0", word_corpus(), tmp_path, WINDOW, progress=SILENT)
    with pytest.raises(BadUsage, match="residual stream"):
        measure("M08", toy.model, sae=replace(sae, hook=""), more={"texts": mlp})
    for wrong in ("M08:top_k=0", "M10:radius=-1", "M12:mismatch_threshold=1.0", "EX34:rows=0"):
        with pytest.raises(BadUsage, match="got"):
            toy.measured(wrong, sae)


def described(seed: int = 0, n: int = 6, tokens: int = 30) -> Described:
    rng = np.random.default_rng(seed)
    return Described(rng.standard_normal((n, tokens)), rng.standard_normal((n, tokens)))


def test_the_first_tokens_of_equal_scores() -> None:
    assert top_tokens(np.array([[1.0, 3.0, 2.0, 3.0]]), 3).tolist() == [[1, 3, 2]]
    assert top_tokens(np.array([[1.0, 3.0]]), 5).tolist() == [[1, 0]]


def test_jaccard_by_hand() -> None:
    a = np.array([[1, 2, 3], [1, 2, 3], [-1, -1, -1], [1, -1, -1]])
    b = np.array([[3, 4, -1], [3, 1, 2], [-1, -1, -1], [-1, -1, -1]])
    assert jaccard(a, b).tolist()[:2] == [0.25, 1.0]
    # Two empty lists neither agree nor disagree.
    assert np.isnan(jaccard(a, b)[2]) and jaccard(a, b)[3] == 0


def test_overlap_and_rank_biased_overlap_by_hand() -> None:
    of = Described(np.array([[5.0, 4.0, 3.0, 0.0]]), np.array([[5.0, 0.0, 3.0, 0.0]]))
    found = token_agreement(of, 2)
    assert found.matched.tolist() == [0.5]
    # Common tokens at depths 1 and 2: 1 and 1. .5 x .81 + .1 / .9 x (.9 + .5 x .81).
    assert found.rbo[0] == pytest.approx(0.55)
    assert np.isnan(found.mismatched[0]) and len(found.gain) == 0


def test_equal_rankings_agree_wholly_however_few_tokens_a_feature_has() -> None:
    scores = np.array([[3.0, 2.0, 1.0, -1.0, -2.0], [-1.0, -2.0, -3.0, 4.0, -5.0]])
    found = token_agreement(Described(scores, scores), 5)
    assert found.matched.tolist() == [1, 1] and found.rbo == pytest.approx([1, 1])
    # Feature 0 has 3 tokens, 1 has one: by the weights of 1, the first 3 tokens are 3, 0 and 1.
    assert found.mismatched == pytest.approx([2 / 3, 0])


def test_agreement_is_that_of_sets_one_feature_at_a_time() -> None:
    of, k = described(), 7
    found = token_agreement(of, k)
    n = len(of.measured)
    expected = np.zeros((n, n))
    for j in range(n):
        m = min(k, int((of.measured[j] > 0).sum()))
        theirs = set(np.argsort(-of.measured[j])[:m])
        for i in range(n):
            expected[i, j] = len(theirs & set(np.argsort(-of.by_weights[i])[:m])) / m
    assert found.matched == pytest.approx(np.diagonal(expected))
    off = (expected.sum(axis=0) - np.diagonal(expected)) / (n - 1)
    assert found.mismatched == pytest.approx(off)


def test_the_order_of_tokens_does_not_matter() -> None:
    of = described(1)
    order = np.random.default_rng(2).permutation(30)
    turned = token_agreement(Described(of.by_weights[:, order], of.measured[:, order]), 5)
    assert turned.matched == pytest.approx(token_agreement(of, 5).matched)


def test_a_feature_without_tokens_is_undefined() -> None:
    of = described(3, n=3)
    of.measured[1] = 0
    found = token_agreement(of, 5)
    assert np.isnan(found.matched).tolist() == [False, True, False]
    assert np.isnan(found.rbo[1]) and len(found.gain) == 2
    told = agreement_quantities("input", found)
    assert told["input_agreement"].n == 2
    assert told["input_random_gain"].value is None


def test_tokens_that_all_features_have_are_no_gain() -> None:
    rng = np.random.default_rng(4)
    common = 10 * rng.standard_normal(200)
    noise = [common + rng.standard_normal((30, 200)) for _ in range(2)]
    found = token_agreement(Described(*noise), 20)
    assert found.matched.mean() > 0.7 and abs(found.gain.mean()) < 0.05
