"""mechassay assays claims about how language models work inside.

    import mechassay as ma

    model = ma.load_model("smollm2-135m")
    task = ma.load_task("ioi")
    train, test = task.pairs("train", model, limit=100), task.pairs("test", model, limit=100)
    scores = ma.circuits.EAPIGInputs(steps=5).score(model, train)
    curve = ma.circuits.faithfulness_curve(model, scores, test)
    curve.cpr, curve.cmd, curve.to_html("report.html")

Names are loaded at first use: importing the package imports nothing heavy and has no effect.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mechassay.version import __version__

if TYPE_CHECKING:
    from mechassay import (
        adversarial,
        circuits,
        claims,
        features,
        gym,
        leaderboard,
        measurement,
        saes,
        tasks,
        truth,
        variables,
    )
    from mechassay.circuits.methods import load_method
    from mechassay.circuits.node_scores import load_scores
    from mechassay.errors import MechassayError
    from mechassay.examples import Example, Prompt
    from mechassay.graph import Graph
    from mechassay.interchange import InterchangeBatch
    from mechassay.interchange_pairs import InterchangePair
    from mechassay.interventions.intervene import intervene
    from mechassay.interventions.intervention import Ablate, Add, Interchange, Replace, Scale
    from mechassay.interventions.patch import patch
    from mechassay.interventions.site import Site, load_site, sites
    from mechassay.interventions.steering import generate, perplexity
    from mechassay.interventions.sweep import sweep
    from mechassay.models.model import Model, load_model
    from mechassay.models.packaged import fetch
    from mechassay.names import (
        list_methods,
        list_metrics,
        list_models,
        list_objectives,
        list_tasks,
        load_circuit,
    )
    from mechassay.objectives import load_objective
    from mechassay.pairs import Batch, Pair, Pairs
    from mechassay.records import Failure, Record, read_record
    from mechassay.runs.accuracy import AccuracyJob
    from mechassay.runs.adversarial import AdversarialJob
    from mechassay.runs.circuits import CircuitsJob
    from mechassay.runs.execute import run
    from mechassay.runs.measure import MeasureJob
    from mechassay.runs.patch import PatchJob
    from mechassay.tasks import Task, load_task
    from mechassay.tasks.template import Template
    from mechassay.truth.models import load_truth

__all__ = [
    "Ablate",
    "AccuracyJob",
    "Add",
    "AdversarialJob",
    "Batch",
    "CircuitsJob",
    "Example",
    "Failure",
    "Graph",
    "Interchange",
    "InterchangeBatch",
    "InterchangePair",
    "MeasureJob",
    "MechassayError",
    "Model",
    "Pair",
    "Pairs",
    "PatchJob",
    "Prompt",
    "Record",
    "Replace",
    "Scale",
    "Site",
    "Task",
    "Template",
    "__version__",
    "adversarial",
    "circuits",
    "claims",
    "features",
    "fetch",
    "generate",
    "gym",
    "intervene",
    "leaderboard",
    "list_methods",
    "list_metrics",
    "list_models",
    "list_objectives",
    "list_tasks",
    "load_circuit",
    "load_method",
    "load_model",
    "load_objective",
    "load_scores",
    "load_site",
    "load_task",
    "load_truth",
    "measurement",
    "patch",
    "perplexity",
    "read_record",
    "run",
    "saes",
    "sites",
    "sweep",
    "tasks",
    "truth",
    "variables",
]

_PACKAGES = (
    "adversarial",
    "circuits",
    "claims",
    "features",
    "gym",
    "leaderboard",
    "measurement",
    "saes",
    "tasks",
    "truth",
    "variables",
)
_LAZY = {
    "Ablate": "mechassay.interventions.intervention",
    "AccuracyJob": "mechassay.runs.accuracy",
    "Add": "mechassay.interventions.intervention",
    "AdversarialJob": "mechassay.runs.adversarial",
    "Batch": "mechassay.pairs",
    "CircuitsJob": "mechassay.runs.circuits",
    "Example": "mechassay.examples",
    "Failure": "mechassay.records",
    "Graph": "mechassay.graph",
    "Interchange": "mechassay.interventions.intervention",
    "InterchangeBatch": "mechassay.interchange",
    "InterchangePair": "mechassay.interchange_pairs",
    "MeasureJob": "mechassay.runs.measure",
    "MechassayError": "mechassay.errors",
    "Model": "mechassay.models.model",
    "Pair": "mechassay.pairs",
    "Pairs": "mechassay.pairs",
    "PatchJob": "mechassay.runs.patch",
    "Prompt": "mechassay.examples",
    "Record": "mechassay.records",
    "Replace": "mechassay.interventions.intervention",
    "Scale": "mechassay.interventions.intervention",
    "Site": "mechassay.interventions.site",
    "Task": "mechassay.tasks",
    "Template": "mechassay.tasks.template",
    "fetch": "mechassay.models.packaged",
    "generate": "mechassay.interventions.steering",
    "intervene": "mechassay.interventions.intervene",
    "list_methods": "mechassay.names",
    "list_metrics": "mechassay.names",
    "list_models": "mechassay.names",
    "list_objectives": "mechassay.names",
    "list_tasks": "mechassay.names",
    "load_circuit": "mechassay.names",
    "load_method": "mechassay.circuits.methods",
    "load_model": "mechassay.models.model",
    "load_objective": "mechassay.objectives",
    "load_scores": "mechassay.circuits.node_scores",
    "load_site": "mechassay.interventions.site",
    "load_task": "mechassay.tasks",
    "load_truth": "mechassay.truth.models",
    "patch": "mechassay.interventions.patch",
    "perplexity": "mechassay.interventions.steering",
    "read_record": "mechassay.records",
    "run": "mechassay.runs.execute",
    "sites": "mechassay.interventions.site",
    "sweep": "mechassay.interventions.sweep",
}


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"mechassay.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'mechassay' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
