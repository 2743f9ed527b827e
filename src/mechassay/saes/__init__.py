"""Dictionaries of features: sparse autoencoders of others, our own, and how good they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_exports as _lazy_exports

if TYPE_CHECKING:
    from mechassay.features.sae import load_sae as load_sae
    from mechassay.features.sae import provenance_of as provenance_of
    from mechassay.features.sae import save_sae as save_sae
    from mechassay.saes.activations import ActivationStore as ActivationStore
    from mechassay.saes.activations import Corpus as Corpus
    from mechassay.saes.activations import Document as Document
    from mechassay.saes.activations import StoreSettings as StoreSettings
    from mechassay.saes.activations import load_corpus as load_corpus
    from mechassay.saes.activations import store_activations as store_activations
    from mechassay.saes.architectures import SAESettings as SAESettings
    from mechassay.saes.feature_matching import prefix_of as prefix_of
    from mechassay.saes.quality import SAEQuality as SAEQuality
    from mechassay.saes.quality import sae_quality as sae_quality
    from mechassay.saes.synthetic import PlantedFeatures as PlantedFeatures
    from mechassay.saes.synthetic import PlantedSettings as PlantedSettings
    from mechassay.saes.synthetic import plant as plant
    from mechassay.saes.training import DictionaryTrainer as DictionaryTrainer
    from mechassay.saes.training import TrainedSAE as TrainedSAE
    from mechassay.saes.training import train_sae as train_sae


__all__, __getattr__, __dir__ = _lazy_exports(__name__, __file__)
