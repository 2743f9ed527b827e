"""Circuit localization methods, one a file: frozen dataclasses whose fields are their settings."""

from __future__ import annotations

from mechassay.registry import Registry

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
