"""Commands that make records which rules ask for, with what they cost.

The circuit is that of the claim: found by a method, or cut from the score file that the claim
names. Other ablations, tasks, models and samples measure the same scores again. The cost is what a
record of the same model took; if there is none, how many circuits are run on each pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from string import Template

from mechassay.claims.claim import COUNTERFACTUAL, Claim
from mechassay.records import Record

ANY_TASK, ANY_MODEL = "TASK", "MODEL"
"""Stand in a command for a task or a model of the reader's choice."""
COMMANDS = {
    "own": Template(
        "$first --no-curve --metric completeness$at --metric minimality$at -o $runs/own"
    ),
    "other": Template("$again -t $other --no-curve --metric completeness$at -o $runs/other-task"),
    "other ablation": Template(
        "$again -t $task --ablation $ablation --no-curve --metric completeness$at"
        " -o $runs/$ablation"
    ),
    "other sample": Template(
        "$again -t $task --split validation --no-curve --metric completeness$at -o $runs/validation"
    ),
    "untrained": Template(
        "$evaluate -m $untrained -t $task --no-curve --metric completeness$at -o $runs/untrained"
    ),
    "truth": Template(
        "mechassay circuits run -m truth --method $ranking --no-curve -o $runs/truth"
    ),
    "adversarial": Template(
        "mechassay adversarial run -m $model -t $task -c $circuit -o $runs/adversarial"
    ),
    "graded": Template(
        "mechassay measure run EX11 -m $model -t $task --circuit $circuit -o $runs/graded"
    ),
    "composition": Template(
        "mechassay measure run B10 -m $model -t $task --circuit $circuit -o $runs/composition"
    ),
    "invariance": Template(
        "mechassay measure run EX2 -m $model -t $task --circuit $circuit -o $runs/invariance"
    ),
    "convergence": Template(
        "mechassay measure run F03 -m $model -t $task --circuit $circuit --method $ranking"
        " --method exact -o $runs/convergence"
    ),
    "other family": Template(
        "mechassay circuits run -m $others -t $task --method $ranking --no-curve"
        " --metric completeness$at -o $runs/other-family"
    ),
}
WITH_METHOD = ("truth", "convergence", "other family")
"""Commands that look for circuits again: a circuit that no method found has none."""
AT_ONE_SIZE = 10
"""Circuits of one size that are run on each pair: the full and the empty one, the circuit and the
rest, and those of random paths."""
COSTS = {
    "adversarial": "two runs of the model and one of the circuit for each of a million pairs",
    "graded": "a part of the model is run some 30 times a head on each of 40 pairs",
    "composition": "no prompt is run: products of the weights of all heads",
    "invariance": "the model and the circuit are run on 120 prompts",
    "convergence": "what the two methods take to rank all edges",
}


def command_for(name: str, claim: Claim, runs: Path, records: Sequence[Record]) -> str:
    """The command of a name for a claim, and its cost, in a sentence."""
    if claim.scores and name in WITH_METHOD:
        return "No command makes it: the circuit is one of a file, which no method found."
    file = claim.scores or (
        f"{runs}/own/scores/{claim.model}--{claim.task}/{claim.ranking}.safetensors"
    )
    evaluate = f"mechassay circuits evaluate {file}"
    again = f"{evaluate} -m {claim.model}"
    method = f"mechassay circuits run -m {claim.model} -t {claim.task} --method {claim.ranking}"
    told = COMMANDS[name].substitute(
        first=f"{again} -t {claim.task}" if claim.scores else method,
        again=again,
        evaluate=evaluate,
        at=f":size={claim.size}" if claim.size else "",
        runs=runs,
        model=claim.model,
        task=claim.task,
        other=claim.other_task or ANY_TASK,
        others=claim.other_model or ANY_MODEL,
        untrained=claim.untrained_copy,
        ranking=claim.ranking,
        circuit=f"{claim.scores}@{claim.size}" if claim.scores else claim.circuit,
        ablation=other_ablation(claim),
    )
    return f"To make it: `{told}` ({cost(name, claim, records)})."


def other_ablation(claim: Claim) -> str:
    """An ablation that is not the claim's."""
    return "mean" if claim.ablation == COUNTERFACTUAL else COUNTERFACTUAL


def cost(name: str, claim: Claim, records: Sequence[Record]) -> str:
    """What a command costs, by what is known."""
    if name in COSTS:
        return COSTS[name]
    taken = [_seconds(each) for each in records if each.model.name == claim.model]
    known = [seconds for seconds in taken if seconds > 0]
    if known and name != "truth":
        return f"a record of {claim.model} took {max(known):,.0f} s"
    return f"about {n_circuits(name, claim)} circuits are run on each of 100 pairs"


def n_circuits(name: str, claim: Claim, most: int | None = None) -> int:
    """About how many circuits a command runs on each pair.

    Args:
        most: edges that are left out in turn.
    """
    size = int(claim.size) if name == "own" and claim.size.isdigit() else 0
    return AT_ONE_SIZE + 2 * min(size, size if most is None else most)


def _seconds(record: Record) -> float:
    values = [value for key, value in record.realised.items() if key.endswith("seconds")]
    return sum(value for value in values if math.isfinite(value))
