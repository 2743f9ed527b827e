"""The plan of a run of circuits: the fields of `discovery.job.CircuitsJob` and their options."""

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
class CircuitsPlan:
    """Find circuits with every method on every task and model, and measure how faithful they
    are.

    Attributes:
        models: "truth" stands for all ground truths.
        tasks: of the models that are no ground truth.
        methods: `ablation=NAME` among a method's settings is what edges carry where it looks for
            its circuit, as in "eap:ablation=mean"; circuits are always measured under `ablation`.
        scores: score files to measure, instead of methods; or folders of circuits.
        stage: "localize" only finds scores.
    """

    models: Annotated[tuple[str, ...], options.MODELS]
    tasks: Annotated[tuple[str, ...], options.TASKS] = ()
    methods: Annotated[tuple[str, ...], options.METHODS] = ()
    scores: Annotated[
        tuple[str, ...], option("Score files, or folders of circuits.", complete="files")
    ] = ()
    counterfactual: Annotated[str | None, options.COUNTERFACTUAL] = None
    objective: Annotated[str | None, options.OBJECTIVE] = None
    keep: Annotated[Keep, options.KEEP] = "all"
    ablation: Annotated[str, options.ABLATION] = "counterfactual"
    optimal: Annotated[
        str,
        option(
            "Settings of optimal ablation, such as loss=language-model; commas stand between"
            " several."
        ),
    ] = ""
    pairing: Annotated[str, options.PAIRING] = "matched"
    train_split: Annotated[str, option("Split to find circuits on.")] = "train"
    train_limit: Annotated[int, options.limit("Pairs to find circuits on.")] = 100
    test_split: Annotated[str, option("Split to measure circuits on.", "--split")] = "test"
    test_limit: Annotated[
        int, options.limit("Pairs to measure circuits on.", "--limit", first=True)
    ] = 100
    profile: Annotated[Profile, options.PROFILE] = "strict"
    construction: Annotated[
        Construction,
        option(
            "How edges make a circuit: top takes the best, greedy grows it from the logits; rank,"
            " sign and ratio take those that hold over the pairs; faithful chooses at each size,"
            " on validation pairs, how many are positive ones. Each method has its way by default."
        ),
    ] = "own"
    random_rankings: Annotated[
        int | None,
        option(
            "Random rankings of each kind to compare with; by default 5, on a ground truth 20 a"
            " method.",
            least=5,
        ),
    ] = None
    resamples: Annotated[
        int,
        option(
            "Resamples of the pairs to find circuits on (--over: of templates or seeds), each with"
            " circuits of its own: one more curve each, and for a method that is no mean over"
            " pairs, or another seed, one more scoring.",
            least=0,
        ),
    ] = 0
    over: Annotated[
        Literal["pairs", "templates", "seeds"],
        option(
            "What halves and resamples are drawn of: the pairs to find circuits on (groups of"
            " them), all pairs of a template at once, or, on the same pairs, seeds of a method"
            " that has one."
        ),
    ] = "pairs"
    metrics: Annotated[tuple[str, ...], options.METRICS] = ()
    known: Annotated[
        str,
        option(
            "File of the circuit that is known (ours, or EAP-IG's .json), for AUROC and the like;"
            " ground truths and InterpBench have one.",
            complete="files",
        ),
    ] = ""
    curve: Annotated[
        bool,
        option(
            "Measure circuits of all sizes; else what the metrics are alone.", "--curve/--no-curve"
        ),
    ] = True
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    seed: Annotated[int, options.SEED] = 0
    private_seed: Annotated[int | None, options.PRIVATE_SEED] = None
    max_minutes: Annotated[
        float | None,
        option(
            "Skip a cell whose circuit would take longer to find, by its method's forwards.",
            least=0,
            role="free",
        ),
    ] = None
    even_at_chance: Annotated[
        bool,
        option(
            "Run tasks that the model does not do.",
            "--even-at-chance/--skip-at-chance",
            role="free",
        ),
    ] = True
    stage: Annotated[Stage, option("What to do.", role="free")] = "all"

    kind: ClassVar[str] = "circuits"
