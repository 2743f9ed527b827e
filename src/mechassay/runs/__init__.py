"""Runs: experiments of many cells, kept in a folder, resumed where they stopped."""

from __future__ import annotations

from mechassay.utils.registry import Registry

EXPERIMENTS = Registry(
    "kind of run",
    {
        "circuits": "mechassay.discovery.experiment:CircuitsExperiment",
        "accuracy": "mechassay.runs.accuracy:AccuracyExperiment",
        "adversarial": "mechassay.adversarial.experiments:AdversarialExperiment",
        "adversarial-paper": "mechassay.adversarial.paper:PaperExperiment",
        "adversarial-shift": "mechassay.adversarial.shift:ShiftExperiment",
        "adversarial-search": "mechassay.adversarial.experiments:SearchExperiment",
        "alignments": "mechassay.variables.experiments:AlignmentsExperiment",
        "assess": "mechassay.judges.experiment:AssessExperiment",
        "directions": "mechassay.gym.experiments:DirectionsExperiment",
        "gym": "mechassay.gym.experiments:GymExperiment",
        "gym-check": "mechassay.gym.experiments:GymCheckExperiment",
        "measure": "mechassay.measurement.experiment:MeasureExperiment",
        "patch": "mechassay.interventions.patching:PatchExperiment",
        "reproduction": "mechassay.reproduction.experiment:ReproductionExperiment",
        "saes": "mechassay.saes.experiment:SAEExperiment",
        "variables": "mechassay.variables.experiments:VariablesExperiment",
    },
    plural="experiments",
)
"""Experiments by the kind that plan.json names."""
CIRCUITS = "circuits"
"""The kind of an option that names a circuit, perhaps in a file (`Option.complete`)."""
FILES_IN = Registry(
    "kind of option that may name a file",
    {CIRCUITS: "mechassay.circuits.methods.spec:CircuitSpec"},
    plural="kinds of options",
)
"""Classes with two functions of an option's value, by `Option.complete`: `path_in` returns the path
of the file that the value names, `name_in_results` the value with the file's own name."""
COSTS = Registry(
    "kind of run that can be planned",
    {
        "circuits": "mechassay.planning:circuits_cost",
        "accuracy": "mechassay.planning:accuracy_cost",
        "adversarial": "mechassay.planning:adversarial_cost",
        "gym": "mechassay.planning:gym_cost",
        "patch": "mechassay.planning:patch_cost",
        "reproduction": "mechassay.reproduction.experiment:reproduction_cost",
        "variables": "mechassay.planning:variables_cost",
    },
    plural="costs",
)
"""Functions (experiment, cells, worker) -> `runs.costs.Cost`, by the kind of run."""
