"""What metrics of dictionaries are given: the activations of a site over texts, and a trainer.

`mechassay.measurement.metric.SOURCES` names it; measurement itself does not know how dictionaries
are trained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from mechassay.features import Architecture
from mechassay.models.model import Model
from mechassay.saes.activations import (
    ActivationStore,
    StoreSettings,
    load_corpus,
    store_activations,
)
from mechassay.saes.architectures import SAESettings
from mechassay.saes.training import DictionaryTrainer
from mechassay.utils.display import Progress


@dataclass(frozen=True)
class DictionarySource:
    """Makes the activations of a site over texts, and the trainer of dictionaries on them.

    Attributes:
        texts: a name or file, see `load_corpus`.
        tokens, window, seed: of the activations, see `StoreSettings`.
        architecture, n_features, k, steps: of trainings, if a metric does not ask for others.
    """

    texts: str
    site: str
    tokens: int | None
    window: int
    architecture: Architecture
    n_features: int
    k: int
    steps: int
    seed: int

    def check(self) -> None:
        """Refuse what is wrong with texts and settings; nothing is run.

        Raises:
            BadFile, BadUsage, UnknownName: something is.
        """
        load_corpus(self.texts)
        self.store_settings()
        self.training()

    def store_settings(self) -> StoreSettings:
        """What activations are taken of the texts."""
        return StoreSettings(window=self.window, tokens=self.tokens, seed=self.seed)

    def training(self) -> SAESettings:
        """How dictionaries are trained, if a metric does not ask for something else."""
        return SAESettings(
            architecture=self.architecture,
            n_features=self.n_features,
            k=self.k,
            steps=self.steps,
        )

    def store(self, model: Model, folder: Path, progress: Progress) -> ActivationStore:
        """The activations, taken now or before."""
        corpus = load_corpus(self.texts)
        return store_activations(
            model, self.site, corpus, folder, self.store_settings(), progress=progress
        )

    def trainer(
        self, store: ActivationStore, folder: Path, device: str, progress: Progress
    ) -> DictionaryTrainer:
        """What trains dictionaries on the activations, and keeps them in the folder."""
        settings = self.training()
        settings = replace(settings, batch_size=min(settings.batch_size, store.n_rows("train")))
        return DictionaryTrainer(store, settings, folder, device=device, progress=progress)
