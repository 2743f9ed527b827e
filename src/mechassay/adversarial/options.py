"""The options of experiments on adversarial evaluation: the fields of the classes of
`adversarial.experiments`, `adversarial.shift` and `adversarial.paper`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from mechassay.runs import options
from mechassay.runs.options import option
from mechassay.stats import DesignKind

SIDE = 64
"""Prompts of each pool that controls use of a grid; of pairs its square."""
LEAST_EFFECT = 0.05
"""Least difference of the tested percentile called worse, as a share of the empty circuit's."""
BUDGET = 20_000
MOST_PROMPTS = 1_000_000
"""Prompts of a side at most: as many as the paper's pairs."""
STARTS, RESTARTS = 8, 8
PAIRED = "counterfactual"
"""The only ablation that uses the corrupted prompt."""
CIRCUIT_HELP = (
    "canonical:NAME, truth, full, empty, random@SIZE, random-paths@SIZE, METHOD@SIZE (found on the"
    " train split), FILE.safetensors@SIZE, FILE.json, FILE.pt or FOLDER@SIZE (of circuits: the"
    " largest that fits). SIZE: edges (500) or a share of them (0.01); then :greedy to grow it from"
    " the logits. Repeat for several."
)


@dataclass(frozen=True)
class AdversarialOptions:
    """How far circuits are from the model on every pair of prompts: percentiles with bounds, worst
    pairs, which prompts are worse.

    Attributes:
        circuits: as they are typed, see `circuits.methods.spec`.
        design: grid, matched or independent.
        n_clean, n_corrupted: prompts of each pool; only a grid's may differ.
        same: fields that both prompts of a grid's pair agree in; where: "FIELD=VALUE" of all
            prompts (`adversarial.pools`).
        enumerate_all: take every matched pair of the split instead of a sample.
        objective, pairing: what methods look for circuits by, and on which pairs
            (`circuits.methods.method`); the task's own objective if None.
        worst: how many of the worst pairs to show.
        controls: prompts of each pool that controls are run on; of single pairs its square.
        n_resamples, n_permutations: of the bootstrap of a grid, and of the tests of labels.
        heat_maps: pairs of fields, "place,object", whose heat map is always drawn.
        least_effect: what a label must be worse by to be called so, as a share of the empty
            circuit's 99th percentile.
    """

    model: Annotated[str, options.MODEL]
    task: Annotated[str, options.TASK]
    circuits: Annotated[
        tuple[str, ...], option(CIRCUIT_HELP, "--circuit", "-c", complete="circuits")
    ]
    design: Annotated[
        DesignKind | None,
        option(
            "Each clean with each corrupted prompt, each with its own, or pairs drawn anew; grid if"
            " not given, matched with --enumerate."
        ),
    ] = None
    n_clean: Annotated[int, option("Clean prompts.", least=1, most=MOST_PROMPTS, first=True)] = 1000
    n_corrupted: Annotated[
        int | None,
        option(
            "Corrupted prompts of a grid; as many as clean ones if not given.",
            least=1,
            most=MOST_PROMPTS,
        ),
    ] = None
    same: Annotated[
        tuple[str, ...],
        option("Only pairs of a grid whose prompts agree in this field: template, object. Repeat."),
    ] = ()
    where: Annotated[
        tuple[str, ...], option("Only prompts with this value of a field: FIELD=VALUE. Repeat.")
    ] = ()
    enumerate_all: Annotated[
        bool,
        option(
            "All matched pairs of the split, where a task has finitely many (greater-than).",
            "--enumerate",
        ),
    ] = False
    split: Annotated[str, option("Split to evaluate on: train, validation or test.")] = "test"
    counterfactual: Annotated[str | None, options.COUNTERFACTUAL] = None
    ablation: Annotated[str, options.PAIR_ABLATION] = PAIRED
    train_limit: Annotated[int, options.limit("Pairs that methods find circuits on.")] = 100
    objective: Annotated[str | None, options.OBJECTIVE] = None
    pairing: Annotated[str, options.PAIRING] = "matched"
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    transfer: Annotated[bool, options.TRANSFER] = False
    seed: Annotated[int, options.SEED] = 0
    worst: Annotated[
        int, option("How many of the worst pairs to show, each run again by itself.")
    ] = 10
    controls: Annotated[
        int,
        option("Prompts of each pool that controls are run on; of single pairs its square."),
    ] = SIDE
    n_resamples: Annotated[int, option("Of the bootstrap of a grid.", "--resamples")] = 1000
    n_permutations: Annotated[int, option("Of the tests of labels.", "--permutations")] = 2000
    heat_maps: Annotated[
        tuple[str, ...],
        option(
            "Two fields to draw a heat map of: place,object or noun,'corrupted noun'. Repeat.",
            "--heat-map",
        ),
    ] = ()
    least_effect: Annotated[
        float,
        option("Share of the empty circuit's 99th percentile that a label must be worse by."),
    ] = LEAST_EFFECT

    kind: ClassVar[str] = "adversarial"

    @property
    def paired(self) -> bool:
        """Whether corrupted prompts matter."""
        return self.ablation == PAIRED

    @property
    def drawn_as(self) -> str:
        """The design that the statistics see: clean prompts alone are independent."""
        return (self.design or "grid") if self.paired else "independent"


@dataclass(frozen=True)
class SearchOptions:
    """Change prompts field by field for a larger divergence: a lower bound on the largest one.
    Ctrl-C ends it with the best so far.
    """

    model: Annotated[str, options.MODEL]
    task: Annotated[str, options.TASK]
    circuits: Annotated[
        tuple[str, ...], option(CIRCUIT_HELP, "--circuit", "-c", complete="circuits")
    ]
    n_clean: Annotated[
        int, option("Clean prompts that the search begins with.", least=1, most=MOST_PROMPTS)
    ] = 500
    n_corrupted: Annotated[
        int, option("Corrupted prompts that the search begins with.", least=1, most=MOST_PROMPTS)
    ] = 500
    split: Annotated[str, option("Split of the prompts: train, validation or test.")] = "test"
    counterfactual: Annotated[str | None, options.COUNTERFACTUAL] = None
    budget: Annotated[int, option("Pairs to evaluate at the most.", first=True)] = BUDGET
    starts: Annotated[int, option("Climbs from the worst pairs of the prompts.")] = STARTS
    restarts: Annotated[int, option("Climbs from random pairs after these.")] = RESTARTS
    compare: Annotated[
        bool, option("Also evaluate as many random pairs.", "--compare/--no-compare")
    ] = True
    train_limit: Annotated[int, options.limit("Pairs that a method finds the circuit on.")] = 100
    objective: Annotated[str | None, options.OBJECTIVE] = None
    pairing: Annotated[str, options.PAIRING] = "matched"
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    transfer: Annotated[bool, options.TRANSFER] = False
    seed: Annotated[int, options.SEED] = 0

    kind: ClassVar[str] = "adversarial-search"


@dataclass(frozen=True)
class ShiftOptions:
    """Find circuits on a task's prompts, and compare them on these and on shifted ones: unseen
    words, templates, another register, another task.

    Attributes:
        shifts: kinds of `ioi-shift`, or tasks of the same behaviour.
    """

    model: Annotated[str, options.MODEL]
    circuits: Annotated[
        tuple[str, ...], option(CIRCUIT_HELP, "--circuit", "-c", complete="circuits")
    ]
    task: Annotated[str, options.TASK] = "ioi"
    shifts: Annotated[
        tuple[str, ...],
        option(
            "What the circuit meets: names, objects, places, templates, all, register, secret (of"
            " ioi; all of them if none is named), or another task of the behaviour. Repeat.",
            "--to",
            first=True,
        ),
    ] = ()
    n_prompts: Annotated[
        int, option("Pairs of each kind of prompts.", least=2, most=MOST_PROMPTS, first=True)
    ] = 300
    counterfactual: Annotated[str | None, options.COUNTERFACTUAL] = None
    train_limit: Annotated[int, options.limit("Pairs that a method finds the circuit on.")] = 100
    objective: Annotated[str | None, options.OBJECTIVE] = None
    pairing: Annotated[str, options.PAIRING] = "matched"
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    transfer: Annotated[bool, options.TRANSFER] = False
    seed: Annotated[int, options.SEED] = 0

    kind: ClassVar[str] = "adversarial-shift"


@dataclass(frozen=True)
class PaperOptions:
    """Run the evaluation of Uit de Bos and Garriga-Alonso (2024) again: IOI, greater-than and
    docstring, unmatched and matched pairs.
    """

    model: Annotated[str, replace(options.MODEL, help="GPT-2 small: hub id or local folder.")]
    docstring_model: Annotated[
        str | None,
        option("attn-only-4l (folder with its checkpoint); docstring is left out without it."),
    ] = None
    n_clean: Annotated[int, option("Clean prompts of the grids.", least=1, most=MOST_PROMPTS)] = (
        1000
    )
    n_corrupted: Annotated[
        int, option("Corrupted prompts of the grids.", least=1, most=MOST_PROMPTS)
    ] = 1000
    n_matched: Annotated[
        int,
        option(
            "Matched pairs; of greater-than, which has fewer than the paper's million, all.",
            least=1,
            most=MOST_PROMPTS,
        ),
    ] = 1_000_000
    worst: Annotated[
        int, option("How many of the worst pairs to show, each run again by itself.")
    ] = 10
    dtype: Annotated[str, options.DTYPE] = "float32"
    seed: Annotated[int, options.SEED] = 0

    kind: ClassVar[str] = "adversarial-paper"
