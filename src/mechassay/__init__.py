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

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_exports as _lazy_exports
from mechassay.version import __version__ as __version__

if TYPE_CHECKING:
    from mechassay import adversarial as adversarial
    from mechassay import circuits as circuits
    from mechassay import claims as claims
    from mechassay import documents as documents
    from mechassay import features as features
    from mechassay import gym as gym
    from mechassay import judges as judges
    from mechassay import leaderboard as leaderboard
    from mechassay import measurement as measurement
    from mechassay import saes as saes
    from mechassay import tasks as tasks
    from mechassay import truth as truth
    from mechassay import variables as variables
    from mechassay.adversarial.experiments import AdversarialExperiment as AdversarialExperiment
    from mechassay.catalog import list_methods as list_methods
    from mechassay.catalog import list_metrics as list_metrics
    from mechassay.catalog import list_models as list_models
    from mechassay.catalog import list_objectives as list_objectives
    from mechassay.catalog import list_tasks as list_tasks
    from mechassay.catalog import load_circuit as load_circuit
    from mechassay.circuits.graph_files import load_scores as load_scores
    from mechassay.circuits.methods import load_method as load_method
    from mechassay.discovery.experiment import CircuitsExperiment as CircuitsExperiment
    from mechassay.discovery.find import find_circuit as find_circuit
    from mechassay.errors import MechassayError as MechassayError
    from mechassay.hub import from_hub as from_hub
    from mechassay.hub import push_to_hub as push_to_hub
    from mechassay.interventions.activation_patching import patch as patch
    from mechassay.interventions.intervene import intervene as intervene
    from mechassay.interventions.intervention import Ablate as Ablate
    from mechassay.interventions.intervention import Add as Add
    from mechassay.interventions.intervention import Interchange as Interchange
    from mechassay.interventions.intervention import Replace as Replace
    from mechassay.interventions.intervention import Scale as Scale
    from mechassay.interventions.patching import PatchExperiment as PatchExperiment
    from mechassay.interventions.site import Site as Site
    from mechassay.interventions.site import sites as sites
    from mechassay.interventions.steering import generate as generate
    from mechassay.interventions.steering import perplexity as perplexity
    from mechassay.interventions.sweep import sweep as sweep
    from mechassay.measurement.experiment import MeasureExperiment as MeasureExperiment
    from mechassay.models.computing import computing as computing
    from mechassay.models.graph import Graph as Graph
    from mechassay.models.model import Model as Model
    from mechassay.models.model import load_model as load_model
    from mechassay.models.weight_files import fetch as fetch
    from mechassay.prompts.batch import Batch as Batch
    from mechassay.prompts.interchange_batch import InterchangeBatch as InterchangeBatch
    from mechassay.prompts.interchanges import InterchangePair as InterchangePair
    from mechassay.prompts.pairs import Example as Example
    from mechassay.prompts.pairs import Pair as Pair
    from mechassay.prompts.pairs import Pairs as Pairs
    from mechassay.prompts.pairs import Prompt as Prompt
    from mechassay.results.reading import read_record as read_record
    from mechassay.results.records import Failure as Failure
    from mechassay.results.records import Record as Record
    from mechassay.runs.accuracy import AccuracyExperiment as AccuracyExperiment
    from mechassay.runs.run import open_run as open_run
    from mechassay.runs.run import run as run
    from mechassay.tasks import Task as Task
    from mechassay.tasks import load_task as load_task
    from mechassay.tasks.template import Template as Template
    from mechassay.truth.ground_truth import load_truth as load_truth


__all__, __getattr__, __dir__ = _lazy_exports(__name__, __file__, "__version__")
