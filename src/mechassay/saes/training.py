"""Training a sparse autoencoder on the activations of a store.

Values are centred by the mean of the train values and scaled to a mean norm of sqrt(d):
x = s (h - m). With unit rows of W_dec,

    topk       f = the largest k of relu((x - b_dec) W_enc + b_enc)      loss = |x - x~|^2 / d
    standard   f = relu(the same)                                        loss + l1 sum f / d

(Gao et al. 2024, 2406.04093; Bricken et al. 2023). W_enc begins as the transpose of the random
W_dec, biases as 0. Rows of W_dec are made unit vectors before every step. Adam, `lr` risen linearly
over `warmup` of the steps and falling linearly to 0 over the last `decay` of them; l1 rises with
the learning rate. The decode of topk is sparse (`embedding_bag`), its cost that of k features.

A feature that no value activated for `dead_after` values is dead. Before the last `decay` of the
steps, dead features are drawn again (Bricken et al. 2023): each gets the error x - x~ of one value
of the batch, drawn with odds |x - x~|^4, as its row of W_dec and, at `revived` of the mean norm of
other columns, as its column of W_enc; its bias and Adam's moments become 0.

Afterwards the scale is folded in, so that the SAE reads values as the model has them. Batches are
random orders of all train values, drawn with the seed; a training that is killed goes on from its
checkpoint and ends with the same bits. Train values are held in memory, in the store's type.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.checkpoint import key_of
from mechassay.display import OneLine
from mechassay.errors import BadFile, BadUsage, NonFinite, one_of
from mechassay.features.sae import SAE
from mechassay.files import read_tensors, write_tensors
from mechassay.progress import BAR, Progress
from mechassay.saes.activations import ActivationStore
from mechassay.saes.formats import load_sae, provenance_of, save_sae
from mechassay.training import Order, descend
from mechassay.version import __version__

Architecture = Literal["topk", "standard"]
KIND, LOSSES = "training", "training.safetensors"
VERSION = 2
"""Of the training; it is part of a training's key."""


@dataclass(frozen=True)
class SAESettings:
    """How an SAE is trained.

    Attributes:
        n_features: rows of the dictionary.
        k: active features of a value, of "topk".
        l1: weight of the mean sum of features, of "standard", in scaled values.
        lr: largest learning rate.
        steps: of `batch_size` values each.
        warmup, decay: shares of the steps.
        dead_after: values after which a feature that none of them activated is dead.
        revived: the encoder's norm of features that are drawn again; 0 leaves dead features dead.
    """

    architecture: Architecture = "topk"
    n_features: int = 4096
    k: int = 32
    l1: float = 0.05
    lr: float = 3e-3
    steps: int = 1000
    batch_size: int = 1024
    warmup: float = 0.05
    decay: float = 0.2
    dead_after: int = 200_000
    revived: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("architecture to train", self.architecture, get_args(Architecture))
        if self.architecture == "topk" and not 1 <= self.k <= self.n_features:
            raise BadUsage(f"An SAE of {self.n_features} features keeps 1 to them; got k={self.k}.")
        least = {"n_features": 1, "steps": 1, "batch_size": 1, "dead_after": 1}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise BadUsage(f"{name} is {smallest} or more; got {getattr(self, name)}.")
        if not self.lr > 0 or self.l1 < 0 or self.revived < 0:
            raise BadUsage(
                "The learning rate is positive, and l1 and revived are not negative; got"
                f" lr={self.lr}, l1={self.l1}, revived={self.revived}."
            )
        if not (0 <= self.warmup <= 1 and 0 <= self.decay <= 1):
            raise BadUsage(
                f"warmup and decay are shares of the steps; got {self.warmup} and {self.decay}."
            )

    def rate(self, step: int) -> float:
        """The learning rate of a step, as a share of `lr`."""
        rise = self.warmup * self.steps
        fall = self.decay * self.steps
        up = (step + 1) / rise if rise > 0 else 1.0
        down = (self.steps - step) / fall if fall > 0 else 1.0
        return min(1.0, up, down)


@dataclass(frozen=True, eq=False, repr=False)
class TrainedSAE(OneLine):
    """An SAE of ours, and how it came about.

    Attributes:
        initial: the decoder rows that training began with.
        losses: of every step, before it: the mean squared error of scaled values, per number.
        dead: how many features were dead at each step.
    """

    sae: SAE
    initial: Float[Tensor, "n d"]
    losses: Float[Tensor, "steps"]
    dead: Float[Tensor, "steps"]
    provenance: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def shown(self) -> dict[str, Any]:
        told = {"sae": repr(self.sae), "steps": len(self.losses)}
        return told | {"last_loss": float(self.losses[-1]), "dead": int(self.dead[-1])}

    def save(self, folder: str | Path) -> Path:
        """Write the SAE in SAELens's layout, with its provenance, and its losses beside it."""
        kept = {"losses": self.losses, "dead": self.dead}
        write_tensors(Path(folder) / LOSSES, kept, {"kind": KIND})
        return save_sae(self.sae, folder, provenance=self.provenance)

    @staticmethod
    def load(folder: str | Path) -> TrainedSAE:
        """What `save` wrote.

        Raises:
            BadFile: it is no SAE, or none of ours.
        """
        sae, told = load_sae(folder), provenance_of(folder)
        kept, _ = read_tensors(Path(folder) / LOSSES, KIND)
        try:
            settings = SAESettings(**told["settings"])
        except (KeyError, TypeError, BadUsage) as error:
            raise BadFile(f"{folder}: does not say how it was trained ({error}).") from None
        initial = initial_rows(sae.d_in, settings)
        return TrainedSAE(sae, initial, kept["losses"], kept["dead"], MappingProxyType(told))


def initial_rows(d: int, settings: SAESettings) -> Float[Tensor, "n d"]:
    """The decoder rows that a training begins with."""
    drawn = torch.Generator().manual_seed(settings.seed)
    rows = torch.randn(settings.n_features, d, generator=drawn)
    return rows / rows.norm(dim=1, keepdim=True)


def train_sae(
    store: ActivationStore,
    settings: SAESettings | None = None,
    *,
    encoder: Float[Tensor, "d m"] | None = None,
    checkpoint: Path | None = None,
    progress: Progress = BAR,
) -> TrainedSAE:
    """Train an SAE on the train documents of a store.

    Args:
        encoder: columns of W_enc that the first m features begin with, as of another SAE of these
            values; everything else is drawn with the seed.
        checkpoint: a file that keeps what is done of an unfinished training.

    Raises:
        BadUsage: more values a batch than there are; columns that do not fit.
        NonFinite: the loss is not finite.
    """
    settings = settings or SAESettings()
    begin = time.perf_counter()
    values = store.values("train")
    n, d = values.shape
    if settings.batch_size > n:
        raise BadUsage(f"A batch has at most the {n:,} train values; got {settings.batch_size:,}.")
    mean, scale = _normalisation(values)
    initial = initial_rows(d, settings)
    training = _SAETraining(settings, initial)
    if encoder is not None:
        training.begin_with(encoder)
    order = Order(n, settings.batch_size)
    generator = torch.Generator().manual_seed(settings.seed + 1)
    optimiser = training.optimiser
    label = f"training {settings.architecture}"

    def differentiate(step: int) -> None:
        rows = torch.tensor(order.draw(generator))
        x = (values[rows].float() - mean) * scale
        training.differentiate(step, x, generator)

    key = training_key(store, settings, encoder)
    with progress.track(label, settings.steps) as advance:
        descend(
            differentiate,
            optimiser,
            settings.steps,
            advance=advance,
            key=key,
            checkpoint=checkpoint,
            generator=generator,
            also={**order.kept, **training.kept},
            schedule=lambda step: settings.lr * settings.rate(step),
        )
    training.normalise()
    seconds = round(time.perf_counter() - begin, 1)
    provenance = {
        "trained_by": f"mechassay {__version__}",
        "key": key,
        "settings": asdict(settings),
        "store": store.key,
        "corpus": store.corpus,
        "corpus_hash": store.corpus_hash,
        "weights": store.weights,
        "values": n,
        "values_seen": settings.steps * settings.batch_size,
        "scale": scale,
        "dropped_positions": store.settings.drop,
        "window": store.settings.window,
        "seconds": seconds,
    }
    sae = training.sae(mean, scale, store)
    losses, dead = training.kept["losses"], training.kept["dead"]
    return TrainedSAE(sae, initial, losses, dead, MappingProxyType(provenance))


def training_key(
    store: ActivationStore, settings: SAESettings, encoder: Tensor | None = None
) -> str:
    """The hash of all that a training depends on."""
    began = None if encoder is None else tensor_hash(encoder)
    about = {"store": store.key, "settings": asdict(settings), "encoder": began}
    return key_of({**about, "version": VERSION})


def tensor_hash(x: Tensor) -> str:
    """SHA-256 of a tensor's shape and fp32 values."""
    digest = hashlib.sha256(str(tuple(x.shape)).encode())
    digest.update(x.detach().float().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def _normalisation(values: Tensor) -> tuple[Tensor, float]:
    """The mean of values, and the factor that makes their mean distance to it sqrt(d)."""
    total, distances = torch.zeros(values.shape[1], dtype=torch.float64), 0.0
    for part in values.split(8192):
        total += part.double().sum(0)
    mean = total / len(values)
    for part in values.split(8192):
        distances += float((part.double() - mean).norm(dim=1).sum())
    if distances == 0:
        raise BadUsage("All values are the same, so that there is nothing to train on.")
    return mean.float(), math.sqrt(values.shape[1]) * len(values) / distances


class _SAETraining:
    """Parameters, and what is kept of a training beside them."""

    def __init__(self, settings: SAESettings, initial: Tensor) -> None:
        n, d = initial.shape
        self.settings = settings
        self.w_enc = initial.mT.clone().requires_grad_()
        self.w_dec = initial.clone().requires_grad_()
        self.b_enc = torch.zeros(n, requires_grad=True)
        self.b_dec = torch.zeros(d, requires_grad=True)
        self.optimiser = torch.optim.Adam(self.parameters())
        self.kept = {
            "idle": torch.zeros(n, dtype=torch.long),
            "losses": torch.zeros(settings.steps),
            "dead": torch.zeros(settings.steps),
        }

    def parameters(self) -> list[Tensor]:
        return [self.w_enc, self.w_dec, self.b_enc, self.b_dec]

    @torch.no_grad()
    def begin_with(self, encoder: Tensor) -> None:
        """The first columns of W_enc become those of another SAE."""
        d, n = self.w_enc.shape
        if encoder.ndim != 2 or len(encoder) != d or encoder.shape[1] > n:
            raise BadUsage(
                f"Up to {n} columns of {d} numbers can be begun with; got shape"
                f" {tuple(encoder.shape)}."
            )
        self.w_enc[:, : encoder.shape[1]] = encoder.to(self.w_enc)

    @torch.no_grad()
    def normalise(self) -> None:
        """Rows of W_dec become unit vectors."""
        self.w_dec /= self.w_dec.norm(dim=1, keepdim=True).clamp(min=1e-12)

    def differentiate(self, step: int, x: Float[Tensor, "n d"], generator: torch.Generator) -> None:
        """Leave the gradients of a batch on the parameters."""
        self.normalise()
        self._revive(step, x, generator)
        d, settings = x.shape[1], self.settings
        decoded, f, fired = self._decoded(x)
        sparsity = 0.0 if f is None else settings.rate(step) * settings.l1 * f.sum(1).mean() / d
        squared = (x - decoded).square().sum(dim=1).mean() / d
        loss = squared + sparsity
        if not bool(torch.isfinite(loss)):
            raise NonFinite(f"The loss is not finite at step {step}; lower lr={settings.lr:g}.")
        loss.backward()
        self.kept["losses"][step] = float(squared.detach())
        self.kept["dead"][step] = float((self.kept["idle"] >= settings.dead_after).sum())
        self.kept["idle"].add_(len(x))
        self.kept["idle"][fired] = 0

    def _decoded(self, x: Tensor) -> tuple[Tensor, Tensor | None, Bool[Tensor, "n"]]:
        """x~, all features where there is a penalty of them, and which were active."""
        pre = ((x - self.b_dec) @ self.w_enc + self.b_enc).relu()
        if self.settings.architecture == "standard":
            return pre @ self.w_dec + self.b_dec, pre, (pre > 0).any(dim=0)
        top = pre.topk(self.settings.k, dim=1)
        decoded = F.embedding_bag(
            top.indices, self.w_dec, per_sample_weights=top.values, mode="sum"
        )
        fired = torch.zeros(len(self.b_enc), dtype=torch.bool)
        fired[top.indices[top.values > 0]] = True
        return decoded + self.b_dec, None, fired

    @torch.no_grad()
    def _revive(self, step: int, x: Tensor, generator: torch.Generator) -> None:
        """Draw dead features again; at most one for each value of the batch."""
        settings, idle = self.settings, self.kept["idle"]
        which = (idle >= settings.dead_after).nonzero()[:, 0][: len(x)]
        if not len(which) or settings.revived == 0 or step >= (1 - settings.decay) * settings.steps:
            return
        error = x - self._decoded(x)[0]
        odds = error.square().sum(dim=1).square()
        if int((odds > 0).sum()) < len(which):
            return
        rows = error[torch.multinomial(odds, len(which), generator=generator)]
        rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)
        alive = torch.ones(len(idle), dtype=torch.bool).index_fill(0, which, False)
        norm = self.w_enc[:, alive].norm(dim=0).mean() if bool(alive.any()) else torch.tensor(1.0)
        self.w_dec[which], self.b_enc[which] = rows, 0.0
        self.w_enc[:, which] = settings.revived * norm * rows.mT
        for parameter, at in (
            (self.w_dec, which),
            (self.b_enc, which),
            (self.w_enc, (slice(None), which)),
        ):
            for name in ("exp_avg", "exp_avg_sq"):
                if name in self.optimiser.state[parameter]:
                    self.optimiser.state[parameter][name][at] = 0.0
        idle[which] = 0

    def sae(self, mean: Tensor, scale: float, store: ActivationStore) -> SAE:
        """The SAE that reads values as they are: rows of W_dec stay unit vectors."""
        settings = self.settings
        w_enc, w_dec, b_enc, b_dec = (x.detach().clone() for x in self.parameters())
        # s (h - m) W + b = s ((h - m) W + b / s), and features in units of values are 1 / s of it.
        return SAE(
            w_enc,
            w_dec,
            b_enc / scale,
            mean + b_dec / scale,
            "topk" if settings.architecture == "topk" else "relu",
            k=settings.k if settings.architecture == "topk" else None,
            centred=True,
            hook=str(store.site).partition("@")[0],
            model=store.model,
        )
