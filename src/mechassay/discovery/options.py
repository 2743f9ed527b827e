"""The options of experiments on circuits: the fields of the classes of `discovery.experiment`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from mechassay.circuits.profiles import Profile
from mechassay.runs import options
from mechassay.runs.options import option
from mechassay.tasks import Keep

Stage = Literal["all", "localize"]
Construction = Literal["own", "top", "greedy", "rank", "sign", "ratio", "faithful"]


@dataclass(frozen=True)
class CircuitsOptions:
    """Find circuits with every method on every task and model, and evaluate their faithfulness.

    Attributes:
        models: "truth" stands for all ground-truth models.
        tasks: tasks for models that are not ground truths; these have their own.
        methods: names with optional settings. The setting `ablation=NAME` finds the circuit under
            another ablation, as in "eap:ablation=mean"; circuits are always evaluated under
            `ablation`.
        scores: score files or folders of circuits to evaluate, besides or instead of methods.
        stage: "localize" only computes scores.
    """

    models: Annotated[tuple[str, ...], options.MODELS]
    tasks: Annotated[tuple[str, ...], options.TASKS] = ()
    methods: Annotated[tuple[str, ...], options.METHODS] = ()
    scores: Annotated[
        tuple[str, ...], option("Score files or folders of circuits to evaluate.", complete="files")
    ] = ()
    counterfactual: Annotated[str | None, options.COUNTERFACTUAL] = None
    objective: Annotated[str | None, options.OBJECTIVE] = None
    keep: Annotated[Keep, options.KEEP] = "all"
    ablation: Annotated[str, options.ABLATION] = "counterfactual"
    optimal: Annotated[
        str,
        option(
            "Settings for --ablation optimal, separated by commas:"
            " loss=language-model,check_every=50."
        ),
    ] = ""
    pairing: Annotated[str, options.PAIRING] = "matched"
    train_split: Annotated[str, option("Split used to find circuits.")] = "train"
    train_limit: Annotated[int, options.limit("Number of pairs used to find circuits.")] = 100
    split: Annotated[str, option("Split used to evaluate circuits.")] = "test"
    limit: Annotated[
        int, options.limit("Number of pairs used to evaluate circuits.", first=True)
    ] = 100
    profile: Annotated[Profile, options.PROFILE] = "strict"
    construction: Annotated[
        Construction,
        option(
            "How circuits are built from scores; by default, as the method defines. top: the best"
            " edges. greedy: grown from the logits. rank, sign, ratio: edges that are stable across"
            " pairs. faithful: at each size, the mix of edges by value and by magnitude that is"
            " most faithful on validation pairs."
        ),
    ] = "own"
    random_rankings: Annotated[
        int | None,
        option(
            "Random rankings of each kind (edges, paths) to compare with. Default: 5, or 20 per"
            " method where the true circuit is known.",
            least=5,
        ),
    ] = None
    resamples: Annotated[
        int,
        option(
            "Resamples of the training pairs (or of what --over names); circuits are found"
            " and evaluated again on each. Cost of each: one curve, and one scoring for other seeds"
            " and for methods whose scores are not means over pairs.",
            least=0,
        ),
    ] = 0
    over: Annotated[
        Literal["pairs", "templates", "seeds"],
        option(
            "What stability and resamples vary: training pairs (whole groups), all pairs of a"
            " template together, or the method's seed on the same pairs."
        ),
    ] = "pairs"
    metrics: Annotated[tuple[str, ...], options.METRICS] = ()
    known: Annotated[
        str,
        option(
            "File with the true circuit (mechassay's, or EAP-IG's .json), for AUROC and similar"
            " metrics. Ground-truth and InterpBench models do not need it.",
            complete="files",
        ),
    ] = ""
    curve: Annotated[
        bool,
        option(
            "Evaluate circuits of all sizes, or only what the metrics need.", "--curve/--no-curve"
        ),
    ] = True
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    transfer: Annotated[bool, options.TRANSFER] = False
    seed: Annotated[int, options.SEED] = 0
    private_seed: Annotated[int | None, options.PRIVATE_SEED] = None
    max_minutes: Annotated[
        float | None,
        option(
            "Skip a method if finding its circuit would take longer, as estimated from its number"
            " of forward passes.",
            least=0,
            role="free",
        ),
    ] = None
    even_at_chance: Annotated[
        bool,
        option(
            "Whether to run tasks on which the model is at chance.",
            "--even-at-chance/--skip-at-chance",
            role="free",
        ),
    ] = True
    stage: Annotated[Stage, option("Score and evaluate, or only score.", role="free")] = "all"

    kind: ClassVar[str] = "circuits"
