"""A trainer of dictionaries: trained once for each setting, and kept in a folder.

Some metrics ask what another training would have found: with another seed, width or architecture,
or from features that an earlier one found. Each asks the same trainer, so that all dictionaries are
of the same values, and none is trained twice. In the folder, an SAE is named by the hash of its
store, its settings and what it began with:

    <key>/            the SAE in SAELens's layout, its losses and how it came about
    <key>.part        what is done of a training that was stopped
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor

from mechassay.display import OneLine
from mechassay.errors import one_of
from mechassay.progress import BAR, SILENT, Progress
from mechassay.saes.activations import ActivationStore
from mechassay.saes.architectures import SAESettings
from mechassay.saes.formats import provenance_of
from mechassay.saes.trained import TrainedSAE
from mechassay.saes.training import train_sae, training_key


@dataclass(frozen=True, eq=False, repr=False)
class DictionaryTrainer(OneLine):
    """Trains SAEs on the train values of one store.

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

    def shown(self) -> dict[str, Any]:
        return {"store": repr(self.store), "settings": repr(self.settings)}

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
        known = [each.name for each in fields(SAESettings)]
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
    found = train_sae(
        store,
        settings,
        encoder=encoder,
        decoder=decoder,
        b_enc=b_enc,
        checkpoint=checkpoint,
        device=device,
        progress=progress,
    )
    found.save(folder)
    # Read again, so that a run that goes on has the same.
    return TrainedSAE.load(folder)
