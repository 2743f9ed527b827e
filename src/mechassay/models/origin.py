"""The model in which scores, circuits, features and dictionaries were found.

A result stores the name and the digests of its model (`origin_of`). Before it is measured in a
model, `found_in` compares the digests:

    equal        weights, perhaps but for rounding, and configuration: the same model, whatever its
                 name. Nothing is said.
    different    refused, unless a transfer is asked for; then the headline names both models.
    not known    there are no digests, or they cannot be compared: said on the first screen.

The digests come from a file. They protect from mistakes, and not from a forged file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mechassay.errors import BadUsage
from mechassay.utils.digests import compare_weights

if TYPE_CHECKING:
    from mechassay.models.model import Model

NAME, DIGESTS = "model", "identity"
NOT_KNOWN = ""
_COMPARED = ("weights", "rounded", "dtype", "config")


def origin_of(model: Model) -> dict[str, Any]:
    """Return the name and the digests of a model, as the provenance of a result stores them."""
    return {NAME: model.name, DIGESTS: model.known_identity.as_dict()}


def origin_in(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a provenance that names the model."""
    return {key: provenance[key] for key in (NAME, DIGESTS) if key in provenance}


def found_in(
    what: str, provenance: Mapping[str, Any], model: Model, *, transfer: bool = False
) -> dict[str, str]:
    """Compare the model in which a result was found with the model in which it is measured.

    Args:
        what: the result with its noun: "scores a/s", "dictionary resid.5".
        provenance: of the result.
        transfer: whether the models may differ.

    Returns:
        Nothing if the models are the same. Else the result's name with the model in which it was
        found, as records have it; `NOT_KNOWN` if that is not known.

    Raises:
        BadUsage: the models differ, and no transfer is asked for.
    """
    own, name = _digests(provenance), str(provenance.get(NAME) or "another model")
    if own is None:
        return {what: NOT_KNOWN}
    here = model.known_identity.as_dict()
    likeness = compare_weights(own, here)
    if likeness == "not known":
        return {what: NOT_KNOWN}
    if likeness != "different" and own["config"] == here["config"]:
        return {}
    there = with_digest(name, own)
    if transfer:
        return {what: there}
    differs = "other weights" if likeness == "different" else "another configuration"
    raise BadUsage(
        f"{what}: found in {there}, which has {differs} than {with_digest(model.name, here)}. Give"
        " --transfer (in Python transfer=True) to measure it there all the same."
    )


def origin_text(provenance: Mapping[str, Any]) -> str:
    """Return the model of a provenance, with the digest of the weights if that is known; "" if the
    provenance names no model.
    """
    own, name = _digests(provenance), str(provenance.get(NAME) or "")
    return with_digest(name, own) if name and own else name


def accepted(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """Return a provenance without digests, so that a result that was compared is not compared
    again.
    """
    return {key: value for key, value in provenance.items() if key != DIGESTS}


def with_digest(name: str, digests: Mapping[str, str]) -> str:
    """Return the name of a model with the first digits of the digest of its weights."""
    return f"{name} (weights {digests['weights'][:8]})"


def _digests(provenance: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the digests in a provenance; None if a digest is missing or malformed."""
    digests = provenance.get(DIGESTS)
    if not isinstance(digests, Mapping):
        return None
    held = {name: digests.get(name) for name in _COMPARED}
    if not all(isinstance(value, str) and value for value in held.values()):
        return None
    return {name: str(value) for name, value in held.items()}
