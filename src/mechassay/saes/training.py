"""Training sparse autoencoders (SAEs) on the activations of a store.

Values are centred by the mean of the train values and scaled to a mean norm of sqrt(d): x = s (h
- m). With unit rows of W_dec and pre = (x - b_dec) W_enc + b_enc,

    topk         f = the largest k of relu(pre)                 loss = |x - x~|^2 / d
    jumprelu     f = pre where pre > threshold, else 0          + l0 times active features

(`saes.architectures` has their papers). W_enc begins as the transpose of the random W_dec,
biases as 0. Rows of W_dec are made unit vectors before every step. Adam, `lr` risen linearly
over `warmup` of the steps and falling linearly to 0 over the last `decay` of them. Dead features
are drawn again (`DeadFeatures`).

Afterwards the scale is folded in, so that the SAE reads values as the model has them. Batches
are random orders of all train values, drawn with the seed; a training that is killed goes on
from its checkpoint and ends with the same bits. Train values are held in memory, in the store's
type; parameters are on the device that is asked for.

A `TrainedSAE` keeps how it came about. A `DictionaryTrainer` trains once for each setting.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.errors import BadFile, BadUsage, NonFinite, one_of
from mechassay.features import Architecture
from mechassay.features.sae import SAE, load_sae, provenance_of, save_sae
from mechassay.saes.activations import ActivationStore
from mechassay.saes.architectures import JumpReLULearner, Learner, SAESettings, TopKLearner
from mechassay.utils.arguments import checked
from mechassay.utils.checkpoint import Clock, Order, descend, header_in, key_of
from mechassay.utils.display import BAR, SILENT, OneLine, Progress
from mechassay.utils.files import read_tensors, write_tensors
from mechassay.version import __version__


class DeadFeatures:
    """Counts for how many values each feature was not active.

    A feature that no value activated for `dead_after` values is dead, and comes back (Bricken
    et al. 2023). Before the last `decay` of the steps, dead features are drawn again: each gets
    the error x - x~ of one value of the batch, drawn with odds |x - x~|^4, as its row of W_dec
    and, at `revived` of the mean norm of other features, as its column of W_enc. Its bias, its
    threshold if there is one, and Adam's moments begin anew. Features of another SAE that the
    training began with stay: another one would pass for them.

    Attributes:
        idle: these counts, changed in place.
    """

    def __init__(self, learner: Learner, optimiser: torch.optim.Optimizer) -> None:
        self.learner, self.optimiser = learner, optimiser
        self.settings = learner.settings
        self.idle = torch.zeros_like(learner.b_enc, dtype=torch.long, requires_grad=False)

    @property
    def count(self) -> int:
        """How many are dead."""
        return int((self.idle >= self.settings.dead_after).sum())

    def seen(self, n: int, fired: Bool[Tensor, "n"]) -> None:
        """Count a batch of n values."""
        self.idle.add_(n).masked_fill_(fired, 0)

    @torch.no_grad()
    def revive(self, step: int, x: Float[Tensor, "b d"], generator: torch.Generator) -> None:
        """Draw dead features again; at most one for each value of the batch."""
        settings, learner = self.settings, self.learner
        if settings.revived == 0 or step >= (1 - settings.decay) * settings.steps:
            return
        dead = self.idle >= settings.dead_after
        dead[: learner.n_kept] = False
        which = dead.nonzero()[:, 0][: len(x)]
        if not len(which):
            return
        error = x - learner.code(x, step).decoded
        odds = error.square().sum(dim=1).square()
        if int((odds > 0).sum()) < len(which):
            return
        # The generator is one of the CPU, whatever the parameters are on.
        drawn = torch.multinomial(odds.cpu(), len(which), generator=generator)
        rows = error[drawn.to(error.device)]
        rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-12)
        alive = torch.ones_like(self.idle, dtype=torch.bool).index_fill(0, which, False)
        norm = learner.encoder[alive].norm(dim=1).mean() if bool(alive.any()) else 1.0
        learner.decoder[which] = rows
        learner.encoder[which] = settings.revived * norm * rows
        changed = [learner.encoder, learner.decoder]
        for parameter, fresh in learner.per_feature():
            parameter[which] = fresh
            changed.append(parameter)
        for parameter in changed:
            for name in ("exp_avg", "exp_avg_sq"):
                if name in self.optimiser.state[parameter]:
                    self.optimiser.state[parameter][name][which] = 0.0
        self.idle[which] = 0


KIND, LOSSES = "training", "training.safetensors"


@dataclass(frozen=True, eq=False, repr=False)
class TrainedSAE(OneLine):
    """An SAE of ours with how it came about: the losses of its steps, and its provenance.

    In a folder: the SAE in SAELens's layout, whose metadata hold the provenance, and
    `training.safetensors`, which holds the losses and the numbers of dead features. What the
    training began with is drawn again from the settings.

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

    def repr_fields(self) -> dict[str, Any]:
        facts = {"sae": repr(self.sae), "steps": len(self.losses)}
        return facts | {"last_loss": float(self.losses[-1]), "dead": int(self.dead[-1])}

    @checked
    def save(self, folder: str | Path) -> Path:
        """Write the SAE in SAELens's layout, with its provenance, and its losses beside it."""
        kept = {"losses": self.losses, "dead": self.dead}
        write_tensors(Path(folder) / LOSSES, kept, {"kind": KIND})
        return save_sae(self.sae, folder, provenance=self.provenance)

    @staticmethod
    @checked
    def load(folder: str | Path) -> TrainedSAE:
        """What `save` wrote.

        Raises:
            BadFile: it is no SAE, or none of ours.
        """
        sae, provenance = load_sae(folder), provenance_of(folder)
        kept, _ = read_tensors(Path(folder) / LOSSES, KIND)
        try:
            settings = SAESettings(**provenance["settings"])
            losses, dead = kept["losses"], kept["dead"]
        except (KeyError, TypeError, ValueError, BadUsage) as error:
            raise BadFile(f"{folder}: does not say how it was trained ({error}).") from None
        return TrainedSAE(
            sae, initial_rows(sae.d_in, settings), losses, dead, MappingProxyType(provenance)
        )


def initial_rows(d: int, settings: SAESettings) -> Float[Tensor, "n d"]:
    """The decoder rows that a training begins with: directions drawn uniformly."""
    drawn = torch.Generator().manual_seed(settings.seed)
    rows = torch.randn(settings.n_features, d, generator=drawn, dtype=torch.float32)
    return rows / rows.norm(dim=1, keepdim=True)


LEARNERS: Mapping[Architecture, type[Learner]] = {
    "topk": TopKLearner,
    "jumprelu": JumpReLULearner,
}
VERSION = 3
"""Of the training; it is part of a training's key."""


@checked
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
    clock = Clock()
    clock.add(header_in(checkpoint))
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
        "weights": store.identity.key,
        "values": n,
        "values_seen": settings.steps * settings.batch_size,
        "scale": scale,
        "dropped_positions": store.settings.drop,
        "window": store.settings.window,
        "seconds": round(clock.seconds()["seconds"], 1),
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
            "losses": torch.zeros(steps, dtype=torch.float32),
            "dead": torch.zeros(steps, dtype=torch.float32),
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
        identity=store.identity.as_dict(),
        first=store.settings.drop,
    )


@dataclass(frozen=True, eq=False, repr=False)
class DictionaryTrainer(OneLine):
    """Trains SAEs on the train values of one store.

    Some metrics ask what another training would have found: with another seed, width or
    architecture, or from features that an earlier one found. Each asks the same trainer, so
    that all dictionaries are of the same values, and none is trained twice. In the folder, an
    SAE is named by the hash of its store, its settings and what it began with:

        <key>/         the SAE in SAELens's layout, its losses and how it came about
        <key>.part     what is done of a training that was stopped

    Attributes:
        settings: of a training, where nothing else is asked for.
        folder: where SAEs are kept; None trains anew each time.
        device: that they are trained on.
    """

    store: ActivationStore
    settings: SAESettings = field(default_factory=SAESettings)
    folder: str | Path | None = None
    device: str = "cpu"
    progress: Progress = SILENT

    def repr_fields(self) -> dict[str, Any]:
        return {"store": repr(self.store), "settings": repr(self.settings)}

    @checked
    def train(
        self,
        *,
        seed: int = 0,
        encoder: Float[Tensor, "d m"] | None = None,
        decoder: Float[Tensor, "m d"] | None = None,
        b_enc: Float[Tensor, "m"] | None = None,
        **changes: Any,
    ) -> TrainedSAE:
        """An SAE, trained now or before.

        Args:
            encoder: columns of W_enc that the first m features begin with, as of another SAE of the
                same site; everything else is drawn with the seed.
            decoder, b_enc: their rows of W_dec and their biases, which else are drawn too.
            changes: of the settings, by name: `n_features=512`, `architecture="jumprelu"`.

        Raises:
            UnknownName: no such setting. BadUsage: a wrong value of one, see `train_sae`.
        """
        known = [option.name for option in fields(SAESettings)]
        for name in changes:
            one_of("setting of a training", name, known)
        settings = replace(self.settings, seed=seed, **changes)
        if self.folder is None:
            return train_sae(
                self.store,
                settings,
                encoder=encoder,
                decoder=decoder,
                b_enc=b_enc,
                device=self.device,
                progress=self.progress,
            )
        folder, key = (
            Path(self.folder),
            training_key(self.store, settings, encoder, decoder, b_enc)[:16],
        )
        return train_once(
            self.store,
            settings,
            folder / key,
            checkpoint=folder / f"{key}.part",
            encoder=encoder,
            decoder=decoder,
            b_enc=b_enc,
            device=self.device,
            progress=self.progress,
        )


def train_once(
    store: ActivationStore,
    settings: SAESettings,
    folder: Path,
    *,
    checkpoint: Path | None = None,
    encoder: Float[Tensor, "d m"] | None = None,
    decoder: Float[Tensor, "m d"] | None = None,
    b_enc: Float[Tensor, "m"] | None = None,
    device: str = "cpu",
    progress: Progress = BAR,
) -> TrainedSAE:
    """The SAE of a folder, if it came about by this training; else train it and keep it there."""
    key = training_key(store, settings, encoder, decoder, b_enc)
    if (folder / "cfg.json").is_file() and provenance_of(folder).get("key") == key:
        return TrainedSAE.load(folder)
    trained = train_sae(
        store,
        settings,
        encoder=encoder,
        decoder=decoder,
        b_enc=b_enc,
        checkpoint=checkpoint,
        device=device,
        progress=progress,
    )
    trained.save(folder)
    # Read again, so that a run that goes on has the same.
    return TrainedSAE.load(folder)
