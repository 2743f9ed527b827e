"""How an SAE is trained: its architecture, its size, how sparse it is, and the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from mechassay.errors import BadUsage, one_of

Architecture = Literal["topk", "batchtopk", "jumprelu", "matryoshka", "standard"]
ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
Inner = Literal["batchtopk", "topk"]
KEEPING_K: tuple[Architecture, ...] = ("topk", "batchtopk", "matryoshka")
"""Architectures that have k."""
NESTED = (1 / 32, 3 / 32, 7 / 32, 15 / 32, 1.0)
"""Shares of the dictionary that Bussmann et al. (2025) nest: 2,048, 6,144, ... of 65,536."""


@dataclass(frozen=True)
class SAESettings:
    """How an SAE is trained.

    Attributes:
        n_features: rows of the dictionary.
        k: active features of a value, of "topk"; on average, of "batchtopk" and "matryoshka".
        l1: weight of the mean sum of features, of "standard", in scaled values.
        l0: weight of the mean number of active features, of "jumprelu", beside the squared error
            of values with a norm of 1.
        threshold, bandwidth: of "jumprelu" at the beginning, and the width of the kernel that
            estimates its gradient, in scaled values, where features that are drawn at random have
            a standard deviation of about 1.
        prefixes: sizes of the nested dictionaries of "matryoshka", the last one `n_features`;
            none stands for the shares `NESTED`.
        inner: what "matryoshka" keeps its features by.
        lr: largest learning rate.
        steps: of `batch_size` values each.
        warmup, decay: shares of the steps.
        dead_after: values after which a feature that none of them activated is dead.
        revived: the encoder's norm of features that are drawn again; 0 leaves dead features dead.
    """

    architecture: Architecture = "topk"
    n_features: int = 4096
    k: int = 32
    l1: float = 0.05
    l0: float = 1e-3
    threshold: float = 0.5
    bandwidth: float = 0.5
    prefixes: tuple[int, ...] = ()
    inner: Inner = "batchtopk"
    lr: float = 3e-3
    steps: int = 1000
    batch_size: int = 1024
    warmup: float = 0.05
    decay: float = 0.2
    dead_after: int = 200_000
    revived: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("architecture to train", self.architecture, ARCHITECTURES)
        one_of("choice of features inside of matryoshka", self.inner, get_args(Inner))
        if self.architecture in KEEPING_K and not 1 <= self.k <= self.n_features:
            raise BadUsage(f"An SAE of {self.n_features} features keeps 1 to them; got k={self.k}.")
        least = {"n_features": 1, "steps": 1, "batch_size": 1, "dead_after": 1}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise BadUsage(f"{name} is {smallest} or more; got {getattr(self, name)}.")
        if not self.lr > 0 or self.l1 < 0 or self.l0 < 0 or self.revived < 0:
            raise BadUsage(
                "The learning rate is positive, and l1, l0 and revived are not negative; got"
                f" lr={self.lr}, l1={self.l1}, l0={self.l0}, revived={self.revived}."
            )
        if not (self.threshold > 0 and self.bandwidth > 0):
            raise BadUsage(
                f"threshold and bandwidth are positive; got {self.threshold} and {self.bandwidth}."
            )
        if not (0 <= self.warmup <= 1 and 0 <= self.decay <= 1):
            raise BadUsage(
                f"warmup and decay are shares of the steps; got {self.warmup} and {self.decay}."
            )
        sizes = self.prefixes
        rising = all(a < b for a, b in zip((0, *sizes), sizes, strict=False))
        if sizes and not (rising and sizes[-1] == self.n_features):
            raise BadUsage(
                f"Prefixes are growing sizes, the last one all {self.n_features} features; got"
                f" {sizes}."
            )

    @property
    def nested(self) -> tuple[int, ...]:
        """Sizes of the nested dictionaries: those given, or the published shares."""
        some = (max(1, round(share * self.n_features)) for share in NESTED)
        return self.prefixes or tuple(dict.fromkeys(some))

    def rate(self, step: int) -> float:
        """The learning rate of a step, as a share of `lr`."""
        rise = self.warmup * self.steps
        fall = self.decay * self.steps
        up = (step + 1) / rise if rise > 0 else 1.0
        down = (self.steps - step) / fall if fall > 0 else 1.0
        return min(1.0, up, down)
