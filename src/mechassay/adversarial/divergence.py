"""KL(M(x) || C) at the last token: how it is computed, stored, and checked on the worst pairs.

With p the model's distribution, H its entropy, c its largest logit, and z = W h + b the
circuit's logits,

    KL(p || softmax(z)) = -H(p) - p . (z - c) + logsumexp(z - c)

is summed over blocks of the vocabulary with a running maximum: there is no [batch, vocabulary]
table of the circuit's log-probabilities. Both sums use the same rounded z, so its error cancels;
in a model with large activations it is 1e-4 nats in fp32. (W^T p) . h in place of p . z, one
vector for each clean prompt, would be a few percent cheaper and keep that error. Subtracting c
keeps the sums small. Sums are in fp32 or better and combined in fp64. In fp32 a divergence below
1e-5 is rounding, and may be negative; it is stored as computed.

Each of the worst pairs is run once more, alone, because a fault of the evaluation would show in
the maximum over many pairs. Its divergence is then computed from the two whole logit vectors in
fp64, sum_t p_t (log p_t - log q_t), without what the evaluation of all pairs shares (blocks,
broadcast runs, prefixes, the identity above). If the two differ by more than rounding
(`Tolerance`), the stored value is wrong and the run is broken. A fault that makes values too
small does not show there, so some random pairs are run alone as well. In tables 4 to 6 and 8 to
10 of Uit de Bos and Garriga-Alonso (2024), values and logits come from two runs of different
code, and contradict each other; here both come from one run.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.adversarial.pools import Pool
from mechassay.circuits.circuit import Circuit
from mechassay.errors import BadFile, BadUsage, MissingExtra, first_line
from mechassay.models.circuit_forward import circuit_runner
from mechassay.models.decoder import Decoder, Readout, at_least_fp32
from mechassay.models.forward import ConstantBatch, Constants, Contrast
from mechassay.models.model import Model
from mechassay.prompts.batch import Batch
from mechassay.utils.display import OneLine
from mechassay.utils.files import whole

BLOCK = 8192
"""Tokens of the vocabulary at once: [64, 8192] in fp32 is 2 MB."""


@dataclass(frozen=True)
class Tolerance:
    """How far two computations a, b of a divergence may differ by rounding, in nats:

    |a - b| <= absolute + relative * max(|a|, |b|)

    The two run the same sums in another order: three terms of about ten nats in fp32, from
    activations in the model's own type.
    """

    absolute: float
    relative: float

    @staticmethod
    def of(dtype: torch.dtype) -> Tolerance:
        """For a model of that type; half precision has eight or eleven bits."""
        half = dtype in (torch.bfloat16, torch.float16)
        return Tolerance(0.05, 0.05) if half else Tolerance(1e-4, 1e-3)

    def holds(
        self, a: Float[np.ndarray, "*shape"], b: Float[np.ndarray, "*shape"]
    ) -> Bool[np.ndarray, "*shape"]:
        """Where two computations agree; never where one is undefined."""
        allowed = self.absolute + self.relative * np.maximum(np.abs(a), np.abs(b))
        return np.asarray(np.abs(a - b) <= allowed)


@dataclass(frozen=True, eq=False)
class Target:
    """The model's own distributions after some clean prompts.

    Attributes:
        p: probabilities.
        entropy: of each, in nats.
        highest: the largest logit of each.
    """

    p: Float[Tensor, "batch vocab"]
    entropy: Float[Tensor, "batch"]
    highest: Float[Tensor, "batch"]

    @staticmethod
    @torch.no_grad()
    def of(readout: Readout) -> Target:
        """From the clean run's readout."""
        logits = readout.all()
        logp = logits.log_softmax(dim=-1)
        p = logp.exp()
        return Target(p, -(p * logp).sum(dim=-1), logits.amax(dim=-1))


@torch.no_grad()
def divergence(target: Target, readout: Readout) -> Float[Tensor, "batch"]:
    """KL of each of the target's distributions from the readout's, in nats, in fp64."""
    decoder = readout.decoder
    # p . (z - c) and logsumexp(z - c), by blocks of the vocabulary.
    cross, total = torch.zeros_like(target.entropy), torch.zeros_like(target.entropy)
    highest = torch.full_like(target.entropy, float("-inf"))
    for begin in range(0, decoder.unembedding.shape[0], BLOCK):
        z = _logits(decoder, readout.hidden, slice(begin, begin + BLOCK)) - target.highest[:, None]
        cross += torch.einsum("bv,bv->b", target.p[:, begin : begin + BLOCK], z)
        new = torch.maximum(highest, z.amax(dim=-1))
        total = total * (highest - new).exp() + (z - new[:, None]).exp().sum(dim=-1)
        highest = new
    total = highest + total.log()
    return total.double() - cross.double() - target.entropy.double()


def divergences_from(
    target: Target, logq: Float[Tensor, "others vocab"]
) -> Float[Tensor, "batch others"]:
    """KL of each of the target's distributions from each other one, in nats, in fp64."""
    return -(target.p.to(logq.dtype) @ logq.t()).double() - target.entropy.double()[:, None]


def _logits(
    decoder: Decoder, hidden: Float[Tensor, "batch d_model"], rows: slice
) -> Float[Tensor, "batch some"]:
    bias = None if decoder.unembed_bias is None else decoder.unembed_bias[rows]
    z = at_least_fp32(F.linear(hidden, decoder.unembedding[rows], bias))
    cap = decoder.logit_softcap
    return z if cap is None else cap * torch.tanh(z / cap)


EMPTY = "empty circuit"
CLEAN, CORRUPTED = "clean", "corrupted"


@dataclass(frozen=True, eq=False, repr=False)
class DivergenceFile(OneLine):
    """The divergences of all pairs, as one parquet file.

        clean, corrupted   places of the two prompts in the pools, in the smallest unsigned type
        empty circuit      KL(M(x) || M(x~)), fp32, in nats
        <circuit>          KL(M(x) || C(x, x~)), fp32, in nats, one column a circuit by its name

    Rows are in the order of the values: of a grid, all corrupted prompts of the first clean one
    first. Pairs outside a restricted grid are left out. The same values give the same bytes (with
    the same version of pyarrow). If ablated edges carry constants, there is no column `corrupted`.

    Attributes:
        names: of the circuits.
        circuits: [circuits, clean, corrupted] for a grid, else [circuits, pairs]. NaN is no pair.
        corrupted: of the empty circuit, on the same pairs.
        paired: False if ablated edges carry constants: there are no corrupted prompts then.
    """

    names: tuple[str, ...]
    circuits: Float[np.ndarray, "circuits *pairs"]
    corrupted: Float[np.ndarray, "*pairs"]
    paired: bool = True

    def save(self, path: Path) -> None:
        """Write the file; it appears whole or not at all.

        Raises:
            MissingExtra: `pyarrow` is not installed.
        """
        pyarrow, parquet = arrow()
        columns: dict[str, np.ndarray] = {}
        shape = self.corrupted.shape
        if len(shape) == 2:
            columns[CLEAN] = np.repeat(_places(shape[0]), shape[1])
            columns[CORRUPTED] = np.tile(_places(shape[1]), shape[0])
        else:
            columns[CLEAN] = _places(shape[0])
            if self.paired:
                columns[CORRUPTED] = columns[CLEAN]
        numbers = {EMPTY: self.corrupted, **dict(zip(self.names, self.circuits, strict=True))}
        columns |= {
            name: np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
            for name, values in numbers.items()
        }
        pairs = ~np.isnan(self.corrupted).reshape(-1)
        if not pairs.all():
            columns = {name: values[pairs] for name, values in columns.items()}
        table = pyarrow.table(columns).replace_schema_metadata(
            {"unit": "nats", "shape": ",".join(map(str, shape))}
        )
        # Puts the first bytes of all numbers together: sign and exponent are nearly constant.
        split = {name: "BYTE_STREAM_SPLIT" for name in numbers}
        places = [name for name in columns if name not in numbers]
        with whole(path) as partial:
            parquet.write_table(
                table, partial, compression="zstd", use_dictionary=places, column_encoding=split
            )

    @staticmethod
    def load(path: Path, names: Sequence[str]) -> DivergenceFile:
        """Read what `save` wrote.

        Raises:
            BadFile: truncated, foreign, about other circuits, or with values that are not finite.
            MissingExtra: `pyarrow` is not installed.
        """
        pyarrow, parquet = arrow()
        try:
            table = parquet.read_table(path)
            shape = tuple(map(int, (table.schema.metadata or {})[b"shape"].split(b",")))
            numbers = np.stack([table[name].to_numpy() for name in (EMPTY, *names)])
            places = _places_of(table, shape)
        except (OSError, pyarrow.ArrowException, KeyError, ValueError, IndexError) as error:
            raise BadFile(
                f"{path}: not a file of divergences of {', '.join(names)} ({first_line(error)})."
            ) from None
        if not np.isfinite(numbers).all():
            raise BadFile(
                f"{path}: {int((~np.isfinite(numbers)).sum()):,} of its divergences are not finite."
            )
        whole = numbers
        if places is not None:
            whole = np.full((len(numbers), math.prod(shape)), np.nan, dtype=numbers.dtype)
            whole[:, places] = numbers
        whole = whole.reshape(-1, *shape)
        return DivergenceFile(tuple(names), whole[1:], whole[0], CORRUPTED in table.column_names)

    @staticmethod
    def file_hash(path: Path) -> str:
        """SHA-256 of the file, by which records name it."""
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def arrow() -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet.

    Raises:
        MissingExtra: they are not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("Writing divergences as parquet", "pyarrow", "parquet") from error
    return pyarrow, pyarrow.parquet


def _places_of(table: Any, shape: tuple[int, ...]) -> Int[np.ndarray, "rows"] | None:
    """The places of a file's rows in the values of that shape; None if the file has all of them."""
    if table.num_rows == math.prod(shape):
        return None
    if len(shape) != 2:
        raise ValueError(f"{table.num_rows} rows instead of {math.prod(shape)}")
    clean, corrupted = (table[name].to_numpy().astype(np.int64) for name in (CLEAN, CORRUPTED))
    if clean.max(initial=0) >= shape[0] or corrupted.max(initial=0) >= shape[1]:
        raise ValueError(f"pairs that a grid of {shape[0]} x {shape[1]} does not have")
    return clean * shape[1] + corrupted


def _places(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.min_scalar_type(max(n - 1, 0)))


N_TOKENS = 3


@dataclass(frozen=True)
class Token:
    """A token as text, and its logit."""

    text: str
    logit: float


@dataclass(frozen=True, repr=False)
class WorstCase(OneLine):
    """One pair.

    Attributes:
        clean, corrupted: its places in the pools.
        value: the divergence as it is stored, in nats.
        again: the same, computed by itself.
        agrees: whether the two are equal up to rounding.
        model, circuit: the most likely next tokens, best first.
    """

    clean: int
    corrupted: int
    value: float
    again: float
    agrees: bool
    model: tuple[Token, ...]
    circuit: tuple[Token, ...]


def random_places(
    values: Float[np.ndarray, "*pairs"], k: int, rng: np.random.Generator
) -> Int[np.ndarray, "k"]:
    """Places of k different pairs drawn at random, or of all if fewer; NaN is no pair."""
    pairs = np.flatnonzero(~np.isnan(values))
    return rng.choice(pairs, size=min(k, pairs.size), replace=False)


def cases_at(
    model: Model,
    circuit: Circuit,
    clean: Pool,
    corrupted: Pool,
    values: Float[np.ndarray, "*pairs"],
    places: Int[np.ndarray, "some"],
    *,
    ablated: Constants | None = None,
) -> tuple[WorstCase, ...]:
    """Some pairs, each run again by itself.

    Args:
        values: [clean, corrupted] of a grid, or [pairs], whose pair i is (clean i, corrupted i).
        places: of the pairs in the flat values.
        ablated: constants that ablated edges carry instead of the corrupted prompt's run.

    Raises:
        BadUsage: values of another shape than the pools'.
    """
    shapes = ((len(clean), len(corrupted)), (len(clean),))
    if values.shape not in shapes or (values.ndim == 1 and len(corrupted) != len(clean)):
        raise BadUsage(
            f"Values of {len(clean)} clean and {len(corrupted)} corrupted prompts cannot have the"
            f" shape {values.shape}."
        )
    run = circuit_runner(model.decoder, model.graph, circuit.edges, circuit.neurons)
    cases: list[WorstCase] = []
    for place in places.tolist():
        row, column = divmod(place, len(corrupted)) if values.ndim == 2 else (place, place)
        pair = clean.tokens[row][None], corrupted.tokens[column][None]
        # Answers and foils are not used; they only have to differ.
        batch = Batch.from_tokens(*pair, [0], [1]).to(model.device)
        batch = batch if ablated is None else ConstantBatch.of(batch, ablated)
        cases.append(_case(model, run, batch, (row, column), float(values.reshape(-1)[place])))
    return tuple(cases)


def largest(values: Float[np.ndarray, "n"], k: int) -> Int[np.ndarray, "k"]:
    """Places of the k largest values, largest first, ties by place; NaN is no value.

    Raises:
        BadUsage: k below 0.
    """
    if k < 0:
        raise BadUsage(f"The number of worst pairs must be 0 or more; got {k}.")
    k = min(k, int((~np.isnan(values)).sum()))
    if k == 0:
        return np.empty(0, dtype=np.int64)
    keys = np.where(np.isnan(values), -np.inf, values)
    least = np.partition(keys, values.size - k)[values.size - k]
    places = np.flatnonzero(keys >= least)
    return places[np.argsort(-keys[places], kind="stable")][:k]


@torch.no_grad()
def _case(
    model: Model,
    run: Callable[[Contrast], Readout],
    batch: Batch,
    place: tuple[int, int],
    value: float,
) -> WorstCase:
    contrast = Contrast.run(model.decoder, batch)
    readouts = contrast.clean.readout(model.decoder), run(contrast)
    ours, theirs = (readout.all()[0].double() for readout in readouts)
    p, q = ours.log_softmax(dim=-1), theirs.log_softmax(dim=-1)
    again = float((p.exp() * (p - q)).sum())
    agrees = bool(Tolerance.of(model.dtype).holds(np.array(value), np.array(again)))
    return WorstCase(
        *place, value, again, agrees, _top_tokens(model, ours), _top_tokens(model, theirs)
    )


def _top_tokens(model: Model, logits: Float[Tensor, "vocab"]) -> tuple[Token, ...]:
    best, tokenizer = logits.topk(min(N_TOKENS, len(logits))), model.tokenizer
    return tuple(
        Token(str(token if tokenizer is None else tokenizer.decode([token])), logit)
        for token, logit in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    )


def disagreements(cases: Sequence[WorstCase]) -> tuple[WorstCase, ...]:
    """The cases whose stored value is wrong."""
    return tuple(case for case in cases if not case.agrees)
