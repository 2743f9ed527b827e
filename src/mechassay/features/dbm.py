"""Desiderata-based masking: which features count (De Cao et al. 2020; Mueller et al. 2025, eq. 8).

    g = sigmoid(m / T)             f' = f_b + g (f_s - f_b)

with a mask m, 0 at first, for every feature of a featurizer (the site's own numbers by default),
trained on the loss of the labels; T falls from 1 to .01 in equal steps, and `l1` times the sum of g
is added to the loss. (MIB's code starts a step later and ends a step earlier; the profiles
`mib-2025` do so.) Afterwards features with m > 0 are exchanged wholly and the others not at all;
a site where none is left is not changed. (MIB's code takes an empty choice as all features, and its
submissions with chosen features as those of the whole vector.)

`init` has the featurizer of a site: PCA's axes, an SAE, or a fit of another finder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.errors import BadUsage, one_of
from mechassay.features.das import TrainedFinder, check_cooling, mask_warning, parameter_dtype
from mechassay.features.featurizer import Directions, Featurizer, Identity, decoder_of, exchanged
from mechassay.features.training import BundleValues, Cooling, Trainable, TrainingPlan
from mechassay.interventions.site import Site
from mechassay.models.decoder import at_least_fp32
from mechassay.models.model import Model

_ADDITION = {
    "lr": 1e-2,
    "epochs": 1,
    "batch_size": 256,
    "optimizer": "adamw",
    "shuffle": True,
}
_IOI = {**_ADDITION, "lr": 1.0, "loss": "squared-error"}
_CODE = {"cooling": "mib-2025"}


@dataclass(frozen=True)
class DBM(TrainedFinder):
    """Masks over features; for other settings see `TrainedFinder`.

    Attributes:
        l1: weight of the sum of a site's gates.
        hot, cold: first and last temperature.
        cooling: "full" from the first to the last step, or "mib-2025" as MIB's code; see
            `TrainingPlan.progress`.
    """

    name: ClassVar[str] = "dbm"
    profiles: ClassVar[dict[str, dict[str, Any]]] = {
        "mib-2025": {**_ADDITION, **_CODE},
        "mib-2025-ioi": {**_IOI, "epochs": 2, **_CODE},
        "paper": _ADDITION,
        "paper-ioi": _IOI,
    }

    l1: float = 0.0
    hot: float = 1.0
    cold: float = 0.01
    cooling: str = "full"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_cooling(self.name, self.hot, self.cold)
        one_of("cooling", self.cooling, get_args(Cooling))

    def plan(self, n: int) -> TrainingPlan:
        return replace(super().plan(n), cooling=cast("Cooling", self.cooling))

    def start(
        self,
        model: Model,
        sites: Sequence[Site],
        width: int,
        init: dict[Site, Tensor | Featurizer],
        generator: torch.Generator,
    ) -> Trainable:
        starts = [init.get(site, Identity(width)) for site in sites]
        featurizers = [
            Directions(start) if isinstance(start, Tensor) else start for start in starts
        ]
        probe = torch.zeros(1, width, dtype=parameter_dtype(model), device=model.device)
        sizes: list[int] = []
        for site, featurizer in zip(sites, featurizers, strict=True):
            if (check_site := getattr(featurizer, "check_site", None)) is not None:
                check_site(site, model)
            try:
                sizes.append(featurizer.encode(probe).shape[1])
            except (RuntimeError, BadUsage):
                raise BadUsage(
                    f"{self.name}: the {type(featurizer).__name__} that init has for {site} does"
                    f" not fit its {width} numbers."
                ) from None
        return FeatureMasks(featurizers, sizes, self, probe)


class FeatureMasks(Trainable):
    """A mask over the features of every site; those of sites with fewer features are filled up."""

    def __init__(
        self, featurizers: Sequence[Featurizer], sizes: Sequence[int], finder: DBM, probe: Tensor
    ) -> None:
        self.featurizers, self.sizes, self.finder = list(featurizers), list(sizes), finder
        self.plain = all(isinstance(featurizer, Identity) for featurizer in featurizers)
        self.raw = probe.new_zeros(len(sizes), max(sizes)).requires_grad_()
        places = torch.arange(max(sizes), device=probe.device)
        self.real = places < torch.tensor(sizes, device=probe.device)[:, None]
        self.matrices = self._matrices(probe)

    def _matrices(self, probe: Tensor) -> Float[Tensor, "sites k d"] | None:
        """The decoders of all sites, where all are linear and of one shape."""
        decoders = [
            None if self.plain else decoder_of(own_featurizer)
            for own_featurizer in self.featurizers
        ]
        linear = [x.to(probe) for x in decoders if x is not None]
        if len(linear) < len(decoders) or len({tuple(x.shape) for x in linear}) > 1:
            return None
        return torch.stack(linear)

    def parameters(self) -> Sequence[tuple[Tensor, float]]:
        return [(self.raw, 1.0)]

    def gates(self, progress: float) -> Float[Tensor, "sites k"]:
        """How much of each feature is exchanged."""
        temperature = self.finder.hot + (self.finder.cold - self.finder.hot) * progress
        return torch.sigmoid(self.raw / temperature)

    def new(self, values: BundleValues, progress: float) -> Float[Tensor, "sites m d"]:
        base, source = at_least_fp32(values.base), at_least_fp32(values.source)
        gates = self.gates(progress)
        if self.plain:
            return torch.addcmul(base, source - base, gates[:, None])
        if self.matrices is not None:
            # Values that earlier sites of a run have changed hang on parameters themselves.
            with torch.set_grad_enabled(values.base.requires_grad):
                moved = torch.stack(
                    [
                        featurizer.encode(theirs) - featurizer.encode(ours)
                        for featurizer, ours, theirs in zip(
                            self.featurizers, base, source, strict=True
                        )
                    ]
                )
            return torch.baddbmm(base, moved * gates[:, None], self.matrices)
        parts = zip(self.featurizers, base, source, gates, self.sizes, strict=True)
        return torch.stack(
            [exchanged(part, ours, theirs, gate=gate[:k]) for part, ours, theirs, gate, k in parts]
        )

    def warning(self, number: int, progress: float) -> str:
        """Return the warning of the training, without features that have no gradient, such as those
        of an SAE that are never active.
        """
        raw = self.raw[number, : self.sizes[number]].detach()
        gates = self.gates(progress)[number, : self.sizes[number]].detach()
        return mask_warning(gates[raw != 0], int((raw > 0).sum()), len(raw))

    def penalty(self, progress: float) -> Float[Tensor, "sites"] | None:
        if self.finder.l1 == 0:
            return None
        return self.finder.l1 * (self.gates(progress) * self.real).sum(dim=1)

    def learned(self, number: int) -> tuple[Featurizer, Bool[Tensor, "k"] | None]:
        return self.featurizers[number], self.raw[number, : self.sizes[number]].detach().cpu() > 0
