"""Runs: jobs of many cells, kept in a folder, resumed where they stopped."""

from __future__ import annotations

from mechassay.utils.registry import Registry

JOBS = Registry(
    "kind of run",
    {
        "circuits": "mechassay.discovery.job:CircuitsJob",
        "accuracy": "mechassay.runs.accuracy:AccuracyJob",
        "adversarial": "mechassay.adversarial.jobs:AdversarialJob",
        "adversarial-paper": "mechassay.adversarial.paper:PaperJob",
        "adversarial-shift": "mechassay.adversarial.shift:ShiftJob",
        "adversarial-search": "mechassay.adversarial.jobs:SearchJob",
        "alignments": "mechassay.variables.jobs:AlignmentsJob",
        "assess": "mechassay.judges.job:AssessJob",
        "directions": "mechassay.gym.jobs:DirectionsJob",
        "gym": "mechassay.gym.jobs:GymJob",
        "gym-check": "mechassay.gym.jobs:GymCheckJob",
        "measure": "mechassay.measurement.job:MeasureJob",
        "patch": "mechassay.interventions.job:PatchJob",
        "reproduction": "mechassay.reproduction.job:ReproductionJob",
        "saes": "mechassay.saes.job:SAEJob",
        "variables": "mechassay.variables.jobs:VariablesJob",
    },
    plural="jobs",
)
"""Jobs by the kind that plan.json names."""
COSTS = Registry(
    "kind of run that can be planned",
    {
        "circuits": "mechassay.planning:circuits_cost",
        "accuracy": "mechassay.planning:accuracy_cost",
        "adversarial": "mechassay.planning:adversarial_cost",
        "gym": "mechassay.planning:gym_cost",
        "patch": "mechassay.planning:patch_cost",
        "reproduction": "mechassay.reproduction.job:reproduction_cost",
        "variables": "mechassay.planning:variables_cost",
    },
    plural="costs",
)
"""What says the cost of a run's cells, (job, cells, device) -> `runs.costs.Cost`, by its kind."""
