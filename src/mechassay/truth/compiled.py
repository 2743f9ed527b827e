"""Transformers whose weights are written down, not trained, so that their circuit is known.

A model is a plain `GPT2LMHeadModel` with a residual stream of 64 coordinates. Two hold the ballast,
a constant, and the others a sum of features on 61 orthonormal directions, the cosines of the
discrete cosine transform: every weight matrix is dense, and no feature has a mean that LayerNorm
would remove. Features are one-hot positions and tokens, what the heads of the circuit write
(one-hot over the words), and junk, what the distractors write.

A head of the circuit is a few ones in W_Q, W_K, W_V and W_O: `Reads` says which features its query,
key and value take. Where the query and the key agree the attention score is about `GAP` above that
of any other position. The unembedding reads the feature `out` alone. Where all prompts end in the
same word, its embedding makes the last position ask its question.

All other heads and all MLPs are distractors: random weights that read all features and write junk,
about a unit vector each. Nothing on the circuit reads junk, so that they have no effect but through
the norms: a LayerNorm's gain is BALLAST / sqrt(64), and 0 at the ballast, so that it is the
identity up to |features|^2 / (2 BALLAST^2), less than a thousandth. That and what attention leaks
at a score that is `GAP` lower are all that edges outside the circuit do.

The idea of compiling weights is that of Tracr (Lindner et al. 2023); here the norms are real, the
basis is rotated, and there are distractors. Weights are computed in fp64 from a seed and rounded
once to fp32. A model is compiled when it is first loaded (`compiled_folder`); its circuit, which
was verified, comes with the package.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.fft import dct

from mechassay.models.sources import TRUTH_FOLDERS
from mechassay.models.weight_files import cache_folder, is_model_folder, publish, workbench
from mechassay.truth.summary import FILE
from mechassay.truth.tasks import LENGTH, NAMES, CompiledIOI, CompiledTask, Induction, PreviousToken
from mechassay.truth.verification import write_model

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel


WIDTH, N_HEADS, D_HEAD, D_MLP = 64, 4, 16, 32
N_BALLAST = 2
N_FEATURES = WIDTH - N_BALLAST - 1
CONTEXT = 16
BALLAST = 256.0
GAP = 12.0
LOGIT = 10.0
# Scale of what distractors write, for a length of about 1 whatever there is of junk.
UNIT = 0.2

Matrix = Float[np.ndarray, "_ features"]


class Space:
    """Which features stand where: names of runs of directions, and junk where the names end."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.at: dict[str, slice] = {}
        begin = 0
        for name, size in {"position": LENGTH, **sizes}.items():
            self.at[name] = slice(begin, begin + size)
            begin += size
        self.at["junk"] = slice(begin, N_FEATURES)
        self.spread = np.sqrt(N_FEATURES - begin)

    def read(self, name: str, begin: int = 0, end: int | None = None) -> Matrix:
        """A matrix that reads the features `name`, or some of them: one row each."""
        return np.eye(N_FEATURES)[self.at[name]][begin:end]


@dataclass(frozen=True, eq=False)
class Reads:
    """A head of the circuit: what its query, key and value read, and where it writes.

    A row for each coordinate; missing rows are zeros. `bias` is added to the query.
    """

    q: Matrix
    k: Matrix
    v: Matrix
    writes: str
    bias: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Blueprint:
    """A compiled model and its claimed circuit.

    Attributes:
        task: what it does.
        space: its features.
        heads: the heads of the circuit, by layer and head.
        edges: the edges of the circuit that carry something else in the counterfactual prompt.
        constant_edges: the edges that carry the same in every prompt: no counterfactual shows them,
            zeros and means do.
        seed: of the distractors.
    """

    task: CompiledTask
    space: Space
    heads: Mapping[tuple[int, int], Reads]
    edges: tuple[str, ...]
    constant_edges: tuple[str, ...] = ()
    seed: int = 0
    n_layers: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_layers", 1 + max(layer for layer, _ in self.heads))

    def claimed(self, ablation: str) -> tuple[str, ...]:
        """The edges of the circuit that an ablation can show."""
        return self.edges if ablation == "counterfactual" else self.edges + self.constant_edges


# The models


def previous_token() -> Blueprint:
    """a0.h2 writes the previous word; at the question a1.h1 copies the word before the mark."""
    task = PreviousToken()
    n = len(task.words)
    space = Space({"token": len(task.vocabulary), "previous": n, "out": n})
    mark, question = (
        space.read("token", number, number + 1) for number in map(task.vocabulary.index, "#=")
    )
    return Blueprint(
        task,
        space,
        {
            (0, 2): _previous(space, "previous", n),
            (1, 1): Reads(q=GAP * question, k=mark, v=space.read("previous"), writes="out"),
        },
        edges=("input->a0.h2<v>", "a0.h2->a1.h1<v>", "input->a1.h1<k>", "a1.h1->logits"),
        constant_edges=("input->a1.h1<q>",),
    )


def induction() -> Blueprint:
    """a0.h1 writes the previous word; a1.h3 looks for its own word there, and copies it."""
    task = Induction()
    n = len(task.words)
    space = Space({"token": len(task.vocabulary), "previous": n, "out": n})
    words = space.read("token", 1, 1 + n)
    return Blueprint(
        task,
        space,
        {
            (0, 1): _previous(space, "previous", n),
            (1, 3): Reads(q=GAP * words, k=space.read("previous"), v=words, writes="out"),
        },
        edges=(
            *("input->a0.h1<v>", "a0.h1->a1.h3<k>", "input->a1.h3<q>"),
            *("input->a1.h3<v>", "a1.h3->logits"),
        ),
        seed=1,
    )


def ioi() -> Blueprint:
    """a0.h3 finds an earlier occurrence of its name; a1.h0 brings that name to the end; a2.h2
    attends to the names but that one.

    Scores of a0.h3: 2 GAP for an earlier occurrence, 0 for its own position (same name, same
    position), and GAP for the first word, which is no name, so that a word that is not repeated
    copies nothing.
    """
    task = CompiledIOI()
    n = len(NAMES)
    space = Space({"token": len(task.vocabulary), "duplicate": n, "inhibited": n, "out": n})
    names = space.read("token", 1, 1 + n)
    end = task.vocabulary.index("to")
    last = space.read("token", end, end + 1)
    any_of = np.ones((1, n))
    return Blueprint(
        task,
        space,
        {
            (0, 3): Reads(
                q=2 * GAP * np.concatenate((names, -space.read("position"))),
                k=np.concatenate((names, space.read("position"))),
                v=names,
                writes="duplicate",
                bias=(0.0,) * n + (GAP,),
            ),
            (1, 0): Reads(
                q=GAP * last,
                k=any_of @ space.read("duplicate"),
                v=space.read("duplicate"),
                writes="inhibited",
            ),
            (2, 2): Reads(
                q=GAP * (any_of.T @ last - space.read("inhibited")), k=names, v=names, writes="out"
            ),
        },
        edges=(
            *("input->a0.h3<q>", "input->a0.h3<k>", "input->a0.h3<v>"),
            *("a0.h3->a1.h0<k>", "a0.h3->a1.h0<v>", "a1.h0->a2.h2<q>"),
            *("input->a2.h2<k>", "input->a2.h2<v>", "a2.h2->logits"),
        ),
        constant_edges=("input->a1.h0<q>", "input->a2.h2<q>"),
        seed=2,
    )


def _previous(space: Space, writes: str, n_words: int) -> Reads:
    """The head that attends to the position before, by position alone, and copies its word."""
    return Reads(
        q=GAP * space.read("position", 1),
        k=space.read("position", 0, -1),
        v=space.read("token", 1, 1 + n_words),
        writes=writes,
    )


BLUEPRINTS = {
    "truth-previous-token": previous_token,
    "truth-induction": induction,
    "truth-ioi": ioi,
}


# Weights


def compiled_folder(name: str) -> Path:
    """The folder of a compiled model with its truth.json, in the cache; made if it is not there.

    Its name has a hash of the weights and of truth.json, so that no other version's is taken.

    Raises:
        MechassayError: the cache cannot be written to.
    """
    blueprint, known = BLUEPRINTS[name](), TRUTH_FOLDERS / name / FILE
    digest = hashlib.sha256(known.read_bytes())
    for value in weights(blueprint).values():
        digest.update(value.numpy().tobytes())
    target = cache_folder() / "truth" / f"{name}-{digest.hexdigest()[:16]}" / name
    if not is_model_folder(target):
        with workbench() as worker:
            write_model(compile_model(blueprint), blueprint.task.vocabulary, worker / name)
            shutil.copyfile(known, worker / name / FILE)
            publish(worker / name, target)
    return target


def compile_model(blueprint: Blueprint) -> GPT2LMHeadModel:
    """The Hugging Face model of a blueprint, in fp32."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=len(blueprint.task.vocabulary),
        n_positions=CONTEXT,
        n_embd=WIDTH,
        n_layer=blueprint.n_layers,
        n_head=N_HEADS,
        n_inner=D_MLP,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        model = GPT2LMHeadModel(config).eval().requires_grad_(False)
    missing, unexpected = model.load_state_dict(weights(blueprint), strict=False)
    assert not unexpected and all(
        name.endswith((".attn.bias", ".attn.masked_bias")) for name in missing
    ), (missing, unexpected)
    return model


def directions() -> Float[np.ndarray, "features width"]:
    """The features' directions in the stream: orthonormal, without mean, and 0 at the ballast."""
    n = N_FEATURES + 1
    cosines: Any = dct(np.eye(n), norm="ortho", axis=0)
    return np.pad(cosines[1:], ((0, 0), (N_BALLAST, 0)))


def weights(blueprint: Blueprint) -> dict[str, torch.Tensor]:
    """All parameters by their names in `GPT2LMHeadModel`, in fp32."""
    basis = directions()
    space, task = blueprint.space, blueprint.task
    rng = np.random.default_rng(blueprint.seed)
    token = np.zeros((len(task.vocabulary), N_FEATURES))
    token[:, space.at["token"]] = np.eye(len(task.vocabulary))
    position = np.zeros((CONTEXT, N_FEATURES))
    position[:LENGTH, space.at["position"]] = np.eye(LENGTH)
    positions = position @ basis
    positions[:, :N_BALLAST] = BALLAST * np.array([1, -1]) / np.sqrt(2)
    unembedding = np.zeros((len(task.vocabulary), N_FEATURES))
    unembedding[1 : 1 + len(task.words), space.at["out"]] = LOGIT * np.eye(len(task.words))
    arrays = {
        "transformer.wte.weight": token @ basis,
        "transformer.wpe.weight": positions,
        "lm_head.weight": unembedding @ basis,
    }
    norms = ["transformer.ln_f"]
    for layer in range(blueprint.n_layers):
        name = f"transformer.h.{layer}"
        norms += [f"{name}.ln_1", f"{name}.ln_2"]
        attention = _attention(blueprint, layer, rng)
        up, up_bias, down = _random_mlp(space, rng)
        arrays |= {
            f"{name}.attn.c_attn.weight": (attention.reads @ basis).T,
            f"{name}.attn.c_attn.bias": attention.bias,
            f"{name}.attn.c_proj.weight": attention.writes @ basis,
            f"{name}.attn.c_proj.bias": np.zeros(WIDTH),
            f"{name}.mlp.c_fc.weight": (up @ basis).T,
            f"{name}.mlp.c_fc.bias": up_bias,
            f"{name}.mlp.c_proj.weight": down @ basis,
            f"{name}.mlp.c_proj.bias": np.zeros(WIDTH),
        }
    gain = np.full(WIDTH, BALLAST / np.sqrt(WIDTH))
    gain[:N_BALLAST] = 0
    for name in norms:
        arrays |= {f"{name}.weight": gain, f"{name}.bias": np.zeros(WIDTH)}
    return {
        name: torch.from_numpy(np.ascontiguousarray(value, dtype=np.float32))
        for name, value in arrays.items()
    }


@dataclass(frozen=True, eq=False)
class _HeadFeatures:
    """A layer's heads in features: rows of `reads` and `bias` are queries, keys, then values."""

    reads: Float[np.ndarray, "rows features"]
    bias: Float[np.ndarray, "rows"]
    writes: Float[np.ndarray, "coordinates features"]


def _attention(blueprint: Blueprint, layer: int, rng: np.random.Generator) -> _HeadFeatures:
    space = blueprint.space
    reads, bias = np.zeros((3, N_HEADS, D_HEAD, N_FEATURES)), np.zeros((3, N_HEADS, D_HEAD))
    writes = np.zeros((N_HEADS, D_HEAD, N_FEATURES))
    for head in range(N_HEADS):
        # Drawn for every head, so that distractors do not depend on which heads are the circuit's.
        noise = rng.standard_normal((3, D_HEAD, N_FEATURES))
        junk = rng.standard_normal((D_HEAD, N_FEATURES))
        made = blueprint.heads.get((layer, head))
        if made is None:
            reads[:, head] = noise * np.array([0.8, 0.8, 0.5])[:, None, None]
            writes[head, :, space.at["junk"]] = UNIT * junk[:, space.at["junk"]] / space.spread
            continue
        # Hugging Face divides scores by sqrt(d_head).
        scale = np.sqrt(D_HEAD)
        for slot, rows in enumerate((scale * made.q, made.k, made.v)):
            reads[slot, head, : len(rows)] = rows
        bias[0, head, : len(made.bias)] = scale * np.array(made.bias)
        writes[head, : len(made.v), space.at[made.writes]] = np.eye(len(made.v))
    flat = (reads.reshape(-1, N_FEATURES), bias.reshape(-1), writes.reshape(-1, N_FEATURES))
    return _HeadFeatures(*flat)


def _random_mlp(
    space: Space, rng: np.random.Generator
) -> tuple[Matrix, Float[np.ndarray, "hidden"], Matrix]:
    up, bias = 0.6 * rng.standard_normal((D_MLP, N_FEATURES)), 0.3 * rng.standard_normal(D_MLP)
    down = np.zeros((D_MLP, N_FEATURES))
    junk = rng.standard_normal((D_MLP, N_FEATURES))[:, space.at["junk"]]
    down[:, space.at["junk"]] = UNIT * junk / space.spread
    return up, bias, down
