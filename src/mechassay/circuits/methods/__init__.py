"""Circuit localization methods, one a file: frozen dataclasses whose fields are their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mechassay.registry import Registry

if TYPE_CHECKING:
    from mechassay.circuits.methods.method import Method

_HERE = "mechassay.circuits.methods"
METHODS = Registry(
    "method",
    {
        "acdc": f"{_HERE}.acdc:ACDC",
        "clean-corrupted": f"{_HERE}.clean_corrupted:CleanCorrupted",
        "eap": f"{_HERE}.eap:EAP",
        "eap-ig-activations": f"{_HERE}.eap_ig_activations:EAPIGActivations",
        "eap-ig-inputs": f"{_HERE}.eap_ig_inputs:EAPIGInputs",
        "edge-pruning": f"{_HERE}.edge_pruning:EdgePruning",
        "exact": f"{_HERE}.exact:ExactPatching",
        "exact-nodes": f"{_HERE}.exact_nodes:ExactNodePatching",
        "ifr": f"{_HERE}.ifr:InformationFlowRoutes",
        "nap": f"{_HERE}.nap:NAP",
        "nap-ig": f"{_HERE}.nap:NAPIG",
        "random": f"{_HERE}.random:Random",
        "random-paths": f"{_HERE}.random_paths:RandomPaths",
        "subnetwork-probing": f"{_HERE}.subnetwork_probing:SubnetworkProbing",
        "ugs": f"{_HERE}.ugs:UniformGradientSampling",
    },
)


def load_method(name: str, **settings: Any) -> Method:
    """The method registered as `name`, which may carry settings ("eap-ig-inputs:steps=3").

    Args:
        settings: by keyword, over those in the name.

    Raises:
        UnknownName: nobody registered `name`, or the method has no such setting.
        BadUsage: a setting of another type, or out of its range.
    """
    return METHODS.make(name, **settings)
