"""Circuit localization methods, one a file: frozen dataclasses whose fields are their settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mechassay.errors import BadUsage
from mechassay.utils.arguments import checked
from mechassay.utils.registry import Registry

if TYPE_CHECKING:
    from mechassay.circuits.methods.method import AnyMethod


_HERE = "mechassay.circuits.methods"
METHODS = Registry(
    "method",
    {
        "acdc": f"{_HERE}.acdc:ACDC",
        "acdc-top": f"{_HERE}.acdc:ACDCTop",
        "clean-corrupted": f"{_HERE}.eap:CleanCorrupted",
        "conductance": f"{_HERE}.eap:Conductance",
        "eap": f"{_HERE}.eap:EAP",
        "eap-ig-activations": f"{_HERE}.eap:EAPIGActivations",
        "eap-ig-inputs": f"{_HERE}.eap:EAPIGInputs",
        "edge-pruning": f"{_HERE}.mask_learning:EdgePruning",
        "ensemble": f"{_HERE}.ensemble:Ensemble",
        "exact": f"{_HERE}.exact_patching:ExactPatching",
        "exact-nodes": f"{_HERE}.exact_patching:ExactNodePatching",
        "exact-top": f"{_HERE}.exact_patching:ExactTop",
        "ifr": f"{_HERE}.ifr:InformationFlowRoutes",
        "matryoshka": f"{_HERE}.matryoshka:Matryoshka",
        "nap": f"{_HERE}.eap:NAP",
        "nap-ig": f"{_HERE}.eap:NAPIG",
        "random": f"{_HERE}.random:Random",
        "random-paths": f"{_HERE}.random:RandomPaths",
        "subnetwork-probing": f"{_HERE}.mask_learning:SubnetworkProbing",
        "ugs": f"{_HERE}.mask_learning:UniformGradientSampling",
    },
)

RECOMMENDED = "eap-ig-inputs"
"""The method to run where none is named; docs/suite.md says how it was chosen, and where another is
better."""


@checked
def load_method(name: str, **settings: Any) -> AnyMethod:
    """The method registered as `name`, which may carry settings ("eap-ig-inputs:steps=3").

    Args:
        settings: by keyword, over those in the name.

    Raises:
        UnknownName: nobody registered `name`, or the method has no such setting.
        BadUsage: a setting of another type, or out of its range.
    """
    return METHODS.make(name, **settings)


def inner_method(who: str, name: str) -> AnyMethod:
    """The method that another one uses, by name and settings.

    Raises:
        UnknownName, BadUsage: as `load_method`; one that validation pairs would have to choose.
    """
    method = load_method(name)
    if getattr(method, "candidates", tuple)():
        raise BadUsage(
            f"{who}: {name} is chosen on validation pairs, which a method within another has not;"
            " name the one to use."
        )
    return method
