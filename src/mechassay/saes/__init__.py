"""Dictionaries of features: sparse autoencoders of others, our own, and how good they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_names

if TYPE_CHECKING:
    from mechassay.features.sae import load_sae, provenance_of, save_sae
    from mechassay.saes.activations import (
        ActivationStore,
        Corpus,
        Document,
        StoreSettings,
        fetch_corpus,
        load_corpus,
        store_activations,
    )
    from mechassay.saes.architectures import SAESettings
    from mechassay.saes.feature_matching import (
        SeedAgreement,
        cosine_to,
        permuted_sae,
        prefix_of,
        random_sae,
        seed_agreement,
    )
    from mechassay.saes.quality import SAEQuality, sae_quality, spliced_loss
    from mechassay.saes.synthetic import PlantedFeatures, PlantedSettings, PlantedTrainer, plant
    from mechassay.saes.training import DictionaryTrainer, TrainedSAE, train_sae

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
        "activations": "ActivationStore Corpus Document StoreSettings fetch_corpus load_corpus"
        " store_activations",
        "architectures": "SAESettings",
        "feature_matching": "SeedAgreement cosine_to permuted_sae prefix_of random_sae"
        " seed_agreement",
        "mechassay.features.sae": "load_sae provenance_of save_sae",
        "quality": "SAEQuality sae_quality spliced_loss",
        "synthetic": "PlantedFeatures PlantedSettings PlantedTrainer plant",
        "training": "DictionaryTrainer TrainedSAE train_sae",
    },
)
