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
        load_corpus,
        store_activations,
    )
    from mechassay.saes.architectures import SAESettings
    from mechassay.saes.feature_matching import (
        prefix_of,
    )
    from mechassay.saes.quality import SAEQuality, sae_quality
    from mechassay.saes.synthetic import PlantedFeatures, PlantedSettings, plant
    from mechassay.saes.training import DictionaryTrainer, TrainedSAE, train_sae

__all__ = [
    "ActivationStore",
    "Corpus",
    "DictionaryTrainer",
    "Document",
    "PlantedFeatures",
    "PlantedSettings",
    "SAEQuality",
    "SAESettings",
    "StoreSettings",
    "TrainedSAE",
    "load_corpus",
    "load_sae",
    "plant",
    "prefix_of",
    "provenance_of",
    "sae_quality",
    "save_sae",
    "store_activations",
    "train_sae",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "activations": "ActivationStore Corpus Document StoreSettings load_corpus"
        " store_activations",
        "architectures": "SAESettings",
        "feature_matching": "prefix_of",
        "mechassay.features.sae": "load_sae provenance_of save_sae",
        "quality": "SAEQuality sae_quality",
        "synthetic": "PlantedFeatures PlantedSettings plant",
        "training": "DictionaryTrainer TrainedSAE train_sae",
    },
)
