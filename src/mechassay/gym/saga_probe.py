"""The linear probe as published: scikit-learn's SAGA solver, stopped after 1,000 passes.

    minimise   sum over bases of -log p(label | w h + b)  +  penalty

on values in fp32, with C = 1 / l2 and the generator at 0 (Arora et al. 2024, appendix C). It is
stopped before its optimum where values are of very different sizes: cosines of .93 to 1 with
`features.Probe`, which solves the same problem. The penalties of table 2a: none, l1, l2, and half
of each (the paper does not say how the two are mixed).
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from mechassay.errors import BadUsage, one_of
from mechassay.features.diff_in_means import leading
from mechassay.features.featurizer import Directions, Featurizer
from mechassay.features.finder import Found, ValueFinder
from mechassay.registry import check_settings

RATIOS = {"none": 0.0, "l2": 0.0, "l1": 1.0, "l1+l2": 0.5}


@dataclass(frozen=True)
class SagaProbe(ValueFinder):
    """The direction of a probe that the SAGA solver has left after some passes.

    Attributes:
        l2: the weight of the penalty, of whichever kind; scikit-learn's C is 1 / l2.
        penalty: "l2", "l1", "l1+l2" or "none".
        intercept: whether the logit has a bias.
        passes: over the data, at most.
        seed: of the order in which the solver takes examples.
    """

    name: ClassVar[str] = "probe-saga"
    needs_classes: ClassVar[bool] = True

    l2: float = 1.0
    penalty: str = "l2"
    intercept: bool = True
    passes: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        one_of("penalty of a probe", self.penalty, RATIOS)
        if not self.l2 > 0:
            raise BadUsage(f"{self.name} needs a penalty l2 above 0; got {self.l2}.")
        if self.passes < 1:
            raise BadUsage(f"{self.name} needs at least one pass; got {self.passes}.")

    def find(self, values: Found) -> Featurizer:
        who = f"{self.name} at {values.site}"
        kind = cast(Any, LogisticRegression)
        probe = kind(
            solver="saga",
            C=math.inf if self.penalty == "none" else 1 / self.l2,
            l1_ratio=RATIOS[self.penalty],
            fit_intercept=self.intercept,
            max_iter=self.passes,
            random_state=self.seed,
        )
        with warnings.catch_warnings():
            # That it is stopped is what this is about.
            warnings.simplefilter("ignore", ConvergenceWarning)
            probe.fit(values.base.float().numpy(), values.classes.numpy())
        weights = torch.from_numpy(probe.coef_).double()
        if not bool(weights.any()):
            raise BadUsage(f"{who}: the penalty leaves no weight that is not 0.")
        return Directions.of(weights[0]) if len(weights) == 1 else leading(who, weights, 1)
