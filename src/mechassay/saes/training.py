"""Training a sparse autoencoder on the activations of a store.

Values are centred by the mean of the train values and scaled to a mean norm of sqrt(d):
x = s (h - m). With unit rows of W_dec and pre = (x - b_dec) W_enc + b_enc,

    topk         f = the largest k of relu(pre)                 loss = |x - x~|^2 / d
    jumprelu     f = pre where pre > threshold, else 0          + l0 times active features

(`architectures` has their papers). W_enc begins as the transpose of the random W_dec,
biases as 0. Rows of W_dec are made unit vectors before every step. Adam, `lr` risen linearly over
`warmup` of the steps and falling linearly to 0 over the last `decay` of them. Dead features are
drawn again (`dead_features`).

Afterwards the scale is folded in, so that the SAE reads values as the model has them. Batches are
random orders of all train values, drawn with the seed; a training that is killed goes on from its
checkpoint and ends with the same bits. Train values are held in memory, in the store's type;
parameters are on the device that is asked for.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.checkpoint import key_of
from mechassay.errors import BadUsage, NonFinite
from mechassay.features.sae import SAE, Architecture
from mechassay.progress import BAR, Progress
from mechassay.saes.activations import ActivationStore
from mechassay.saes.architectures import (
    JumpReLULearner,
    Learner,
    SAESettings,
    TopKLearner,
)
from mechassay.saes.dead_features import DeadFeatures
from mechassay.saes.trained import TrainedSAE, initial_rows
from mechassay.training import Order, descend
from mechassay.version import __version__

LEARNERS: Mapping[Architecture, type[Learner]] = {
    "topk": TopKLearner,
    "jumprelu": JumpReLULearner,
}
VERSION = 3
"""Of the training; it is part of a training's key."""


def train_sae(
    store: ActivationStore,
    settings: SAESettings | None = None,
    *,
    encoder: Float[Tensor, "d m"] | None = None,
    decoder: Float[Tensor, "m d"] | None = None,
    b_enc: Float[Tensor, "m"] | None = None,
    checkpoint: Path | None = None,
    device: str = "cpu",
    progress: Progress = BAR,
) -> TrainedSAE:
    """Train an SAE on the train documents of a store.

    Args:
        encoder: columns of W_enc that the first m features begin with, as of another SAE of these
            values; everything else is drawn with the seed. These features are not drawn again.
        decoder, b_enc: their rows of W_dec and their biases, which else are drawn too.
        checkpoint: a file that keeps what is done of an unfinished training.
        device: of the parameters; the SAE comes back on the CPU.

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
    learner = LEARNERS[settings.architecture](settings, initial.to(device))
    if encoder is not None:
        learner.begin_with(encoder, decoder, b_enc, scale=scale)
    order = Order(n, settings.batch_size)
    generator = torch.Generator().manual_seed(settings.seed + 1)
    training = SAETraining(learner)
    key = training_key(store, settings, encoder, decoder, b_enc)

    def batch() -> Tensor:
        rows = torch.tensor(order.draw(generator))
        return (values[rows].float() - mean).mul_(scale).to(device)

    with progress.track(f"training {settings.architecture}", settings.steps) as advance:
        descend(
            lambda step: training.differentiate(step, batch(), generator),
            training.optimiser,
            settings.steps,
            advance=advance,
            key=key,
            checkpoint=checkpoint,
            generator=generator,
            also={**order.kept, **training.kept},
            schedule=lambda step: settings.lr * settings.rate(step),
        )
    learner.normalise()
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
        "seconds": round(time.perf_counter() - begin, 1),
    }
    sae = _folded(learner, mean, scale, store)
    losses, dead = training.kept["losses"], training.kept["dead"]
    return TrainedSAE(sae, initial, losses, dead, MappingProxyType(provenance))


def training_key(
    store: ActivationStore,
    settings: SAESettings,
    encoder: Tensor | None = None,
    decoder: Tensor | None = None,
    b_enc: Tensor | None = None,
) -> str:
    """The hash of all that a training depends on."""
    parts = {"encoder": encoder, "decoder": decoder, "b_enc": b_enc}
    began = {name: None if x is None else _tensor_hash(x) for name, x in parts.items()}
    about = {"store": store.key, "settings": asdict(settings), **began}
    return key_of({**about, "version": VERSION})


def _tensor_hash(x: Tensor) -> str:
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


class SAETraining:
    """One step of a training, and what is kept of it beside the parameters."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        steps = learner.settings.steps
        # The fused step of the CPU reads and writes each number once.
        on_cpu = learner.b_enc.device.type == "cpu"
        self.optimiser = torch.optim.Adam(learner.parameters(), fused=on_cpu or None)
        self.dead = DeadFeatures(learner, self.optimiser)
        self.kept = {
            "idle": self.dead.idle,
            "losses": torch.zeros(steps),
            "dead": torch.zeros(steps),
        }

    def differentiate(self, step: int, x: Float[Tensor, "b d"], generator: torch.Generator) -> None:
        """Leave the gradients of a batch on the parameters."""
        learner = self.learner
        learner.normalise()
        self.dead.revive(step, x, generator)
        coded = learner.code(x, step)
        error = (x - coded.decoded).square().sum() / x.numel()
        loss = error + coded.penalty
        if not bool(torch.isfinite(loss)):
            lr = learner.settings.lr
            raise NonFinite(f"The loss is not finite at step {step}; lower lr={lr:g}.")
        loss.backward()
        self.kept["losses"][step] = float(error.detach())
        self.kept["dead"][step] = self.dead.count
        self.dead.seen(len(x), coded.fired)


def _folded(learner: Learner, mean: Tensor, scale: float, store: ActivationStore) -> SAE:
    """The SAE that reads values as they are: rows of W_dec stay unit vectors."""
    held = (learner.encoder, learner.decoder, learner.b_enc, learner.b_dec)
    w_enc, w_dec, b_enc, b_dec = (x.detach().cpu().clone() for x in held)
    inference: dict[str, Any] = {
        name: x.cpu() if isinstance(x, Tensor) else x
        for name, x in learner.inference(scale).items()
    }
    # s (h - m) W + b = s ((h - m) W + b / s), and features in units of values are 1 / s of it.
    return SAE(
        w_enc.mT.contiguous(),
        w_dec,
        b_enc / scale,
        mean + b_dec / scale,
        **inference,
        centred=True,
        hook=str(store.site).partition("@")[0],
        model=store.model,
    )
