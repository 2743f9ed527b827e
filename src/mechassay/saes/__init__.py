"""Dictionaries of features: sparse autoencoders of others, our own, and how good they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.lazy import lazy_names

if TYPE_CHECKING:
    from mechassay.saes.activations import ActivationStore, StoreSettings, store_activations
    from mechassay.saes.agreement import SeedAgreement, cosine_to, seed_agreement
    from mechassay.saes.architectures import SAESettings
    from mechassay.saes.controls import permuted_sae, prefix_of, random_sae
    from mechassay.saes.corpus import Corpus, Document, fetch_corpus, load_corpus
    from mechassay.saes.formats import load_sae, provenance_of, save_sae
    from mechassay.saes.planted import PlantedFeatures, PlantedSettings, PlantedTrainer, plant
    from mechassay.saes.quality import SAEQuality, sae_quality, spliced_loss
    from mechassay.saes.trained import TrainedSAE
    from mechassay.saes.trainer import DictionaryTrainer
    from mechassay.saes.training import train_sae

__all__ = [
    "ActivationStore",
    "Corpus",
    "DictionaryTrainer",
    "Document",
    "PlantedFeatures",
    "PlantedSettings",
    "PlantedTrainer",
    "SAEQuality",
    "SAESettings",
    "SeedAgreement",
    "StoreSettings",
    "TrainedSAE",
    "cosine_to",
    "fetch_corpus",
    "load_corpus",
    "load_sae",
    "permuted_sae",
    "plant",
    "prefix_of",
    "provenance_of",
    "random_sae",
    "sae_quality",
    "save_sae",
    "seed_agreement",
    "spliced_loss",
    "store_activations",
    "train_sae",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "activations": "ActivationStore StoreSettings store_activations",
        "agreement": "SeedAgreement cosine_to seed_agreement",
        "architectures": "SAESettings",
        "controls": "permuted_sae prefix_of random_sae",
        "corpus": "Corpus Document fetch_corpus load_corpus",
        "formats": "load_sae provenance_of save_sae",
        "planted": "PlantedFeatures PlantedSettings PlantedTrainer plant",
        "quality": "SAEQuality sae_quality spliced_loss",
        "trained": "TrainedSAE",
        "trainer": "DictionaryTrainer",
        "training": "train_sae",
    },
)
