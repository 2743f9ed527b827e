"""Commands that make records which rules ask for, with what they cost.

The circuit is that of the claim: found by a method, or cut from the score file that the claim
names. Other ablations, tasks and samples measure the same scores again. The cost is what a record
of the same model took; if there is none, how many circuits are run on each pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from string import Template

from mechassay.claims.claim import COUNTERFACTUAL, Claim
from mechassay.records import Record

ALL = "TASK"
"""Stands in a command for a task of the reader's choice."""
COMMANDS = {
    "own": Template("$first --metric completeness$at --metric minimality$at -o $runs/own"),
    "other": Template("$again -t $other --metric completeness$at -o $runs/other-task"),
    "other ablation": Template(
        "$again -t $task --ablation $ablation --metric completeness$at -o $runs/$ablation"
    ),
    "other sample": Template(
        "$again -t $task --split validation --metric completeness$at -o $runs/validation"
    ),
    "truth": Template("mechassay circuits run -m truth --method $ranking -o $runs/truth"),
    "adversarial": Template(
        "mechassay adversarial run -m $model -t $task -c $circuit -o $runs/adversarial"
    ),
}
CURVE = 80
"""Circuits that a curve with its controls runs on each pair."""


def command_for(name: str, claim: Claim, runs: Path, records: Sequence[Record]) -> str:
    """The command of a name for a claim, and its cost, in a sentence."""
    file = claim.scores or (
        f"{runs}/own/scores/{claim.model}--{claim.task}/{claim.ranking}.safetensors"
    )
    again = f"mechassay circuits evaluate {file} -m {claim.model}"
    method = f"mechassay circuits run -m {claim.model} -t {claim.task} --method {claim.ranking}"
    told = COMMANDS[name].substitute(
        first=f"{again} -t {claim.task}" if claim.scores else method,
        again=again,
        at=f":size={claim.size}" if claim.size else "",
        runs=runs,
        model=claim.model,
        task=claim.task,
        other=ALL,
        ranking=claim.ranking,
        circuit=f"{claim.scores}@{claim.size}" if claim.scores else claim.circuit,
        ablation="mean" if claim.ablation == COUNTERFACTUAL else COUNTERFACTUAL,
    )
    return f"To make it: `{told}` ({cost(name, claim, records)})."


def cost(name: str, claim: Claim, records: Sequence[Record]) -> str:
    """What a command costs, by what is known."""
    taken = [_seconds(each) for each in records if each.model.name == claim.model]
    known = [seconds for seconds in taken if seconds > 0]
    if known and name not in ("truth", "adversarial"):
        return f"a record of {claim.model} took {max(known):,.0f} s"
    if name == "adversarial":
        return "two runs of the model and one of the circuit for each of a million pairs"
    size = int(claim.size) if name == "own" and claim.size.isdigit() else 0
    return f"about {CURVE + 4 + size} circuits are run on each of 100 pairs"


def _seconds(record: Record) -> float:
    values = [value for key, value in record.realised.items() if key.endswith("seconds")]
    return sum(value for value in values if math.isfinite(value))
