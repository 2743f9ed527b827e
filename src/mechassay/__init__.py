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
        documents,
        features,
        gym,
        judges,
        leaderboard,
        measurement,
        saes,
        tasks,
        truth,
        variables,
    )
    from mechassay.adversarial.jobs import AdversarialJob
    from mechassay.catalog import (
        list_methods,
        list_metrics,
        list_models,
        list_objectives,
        list_tasks,
        load_circuit,
    )
    from mechassay.circuits.graph_files import load_scores
    from mechassay.circuits.methods import load_method
    from mechassay.discovery.job import CircuitsJob, find_circuit
    from mechassay.errors import MechassayError
    from mechassay.hub import from_hub, push_to_hub
    from mechassay.interventions.activation_patching import patch
    from mechassay.interventions.intervene import intervene
    from mechassay.interventions.intervention import Ablate, Add, Interchange, Replace, Scale
    from mechassay.interventions.job import PatchJob
    from mechassay.interventions.site import Site, sites
    from mechassay.interventions.steering import generate, perplexity
    from mechassay.interventions.sweep import sweep
    from mechassay.measurement.job import MeasureJob
    from mechassay.models.computing import computing
    from mechassay.models.graph import Graph
    from mechassay.models.model import Model, load_model
    from mechassay.models.weight_files import fetch
    from mechassay.prompts.batch import Batch
    from mechassay.prompts.interchange_batch import InterchangeBatch
    from mechassay.prompts.interchanges import InterchangePair
    from mechassay.prompts.pairs import Example, Pair, Pairs, Prompt
    from mechassay.results.reading import read_record
    from mechassay.results.records import Failure, Record
    from mechassay.runs.accuracy import AccuracyJob
    from mechassay.runs.execute import run
    from mechassay.tasks import Task, load_task
    from mechassay.tasks.template import Template
    from mechassay.truth.ground_truth import load_truth


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
    "computing",
    "documents",
    "features",
    "fetch",
    "find_circuit",
    "from_hub",
    "generate",
    "gym",
    "intervene",
    "judges",
    "leaderboard",
    "list_methods",
    "list_metrics",
    "list_models",
    "list_objectives",
    "list_tasks",
    "load_circuit",
    "load_method",
    "load_model",
    "load_scores",
    "load_task",
    "load_truth",
    "measurement",
    "patch",
    "perplexity",
    "push_to_hub",
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
    "documents",
    "features",
    "gym",
    "judges",
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
    "AdversarialJob": "mechassay.adversarial.jobs",
    "Batch": "mechassay.prompts.batch",
    "CircuitsJob": "mechassay.discovery.job",
    "Example": "mechassay.prompts.pairs",
    "Failure": "mechassay.results.records",
    "Graph": "mechassay.models.graph",
    "Interchange": "mechassay.interventions.intervention",
    "InterchangeBatch": "mechassay.prompts.interchange_batch",
    "InterchangePair": "mechassay.prompts.interchanges",
    "MeasureJob": "mechassay.measurement.job",
    "MechassayError": "mechassay.errors",
    "Model": "mechassay.models.model",
    "Pair": "mechassay.prompts.pairs",
    "Pairs": "mechassay.prompts.pairs",
    "PatchJob": "mechassay.interventions.job",
    "Prompt": "mechassay.prompts.pairs",
    "Record": "mechassay.results.records",
    "Replace": "mechassay.interventions.intervention",
    "Scale": "mechassay.interventions.intervention",
    "Site": "mechassay.interventions.site",
    "Task": "mechassay.tasks",
    "Template": "mechassay.tasks.template",
    "computing": "mechassay.models.computing",
    "fetch": "mechassay.models.weight_files",
    "find_circuit": "mechassay.discovery.job",
    "from_hub": "mechassay.hub",
    "generate": "mechassay.interventions.steering",
    "intervene": "mechassay.interventions.intervene",
    "list_methods": "mechassay.catalog",
    "list_metrics": "mechassay.catalog",
    "list_models": "mechassay.catalog",
    "list_objectives": "mechassay.catalog",
    "list_tasks": "mechassay.catalog",
    "load_circuit": "mechassay.catalog",
    "load_method": "mechassay.circuits.methods",
    "load_model": "mechassay.models.model",
    "load_scores": "mechassay.circuits.graph_files",
    "load_task": "mechassay.tasks",
    "load_truth": "mechassay.truth.ground_truth",
    "patch": "mechassay.interventions.activation_patching",
    "perplexity": "mechassay.interventions.steering",
    "push_to_hub": "mechassay.hub",
    "read_record": "mechassay.results.reading",
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
