"""Methods that look for one direction, with their settings as published, by name.

    das             distributed alignment search: 100 steps of 4, Adam 5e-3, up over 10 %, down to 0
    probe           linear probe with an L2 penalty, at its optimum
    probe-saga      the same, stopped as published
    mean, lda       difference of class means; linear discriminant
    pca, k-means    first principal axis; difference of two centroids: labels play no part
    random          one random direction
    vanilla         the whole vector exchanged
    probe-shuffled, mean-shuffled      fitted on labels that are dealt out anew: controls

(Arora et al. 2024, section 4.2 and appendices B and C.) A method is typed with other settings where
that is wanted: `das:k=4`. The penalty of probes is published by model; it is taken by width here,
the published one that is nearest in ratio, and where two are, the better on validation counts.

`SWEEPS` are the settings of table 2, as the names of methods.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, cast

from mechassay.display import OneLine
from mechassay.errors import BadUsage
from mechassay.features.das import DAS
from mechassay.features.finder import Finder
from mechassay.registry import Registry

SHUFFLED = "-shuffled"
RANDOM, VANILLA = "random", "vanilla"

FINDERS = Registry(
    "gym method",
    {
        "das": "mechassay.features.das:DAS",
        "das-stopped": "mechassay.gym.stopped_das:StoppedDAS",
        "probe": "mechassay.features.probe:Probe",
        "probe-saga": "mechassay.gym.saga_probe:SagaProbe",
        "mean": "mechassay.features.diff_in_means:DiffInMeans",
        "lda": "mechassay.features.lda:LDA",
        "pca": "mechassay.features.pca:PCA",
        "pca-mean": "mechassay.gym.averaged_axes:AveragedAxes",
        "k-means": "mechassay.features.kmeans:KMeans",
        RANDOM: "mechassay.features.random_directions:RandomDirections",
        VANILLA: "mechassay.features.full_vector:FullVector",
        f"probe{SHUFFLED}": "mechassay.features.probe:Probe",
        f"mean{SHUFFLED}": "mechassay.features.diff_in_means:DiffInMeans",
    },
    plural="gym_methods",
)
"""By name; other packages add finders under the entry point group `mechassay.gym_methods`."""

PUBLISHED = ("das", "probe", "mean", "pca", "k-means", "lda", RANDOM, VANILLA)
"""The methods of table 1, in its order, and the whole vector."""
CONTROLS = (f"probe{SHUFFLED}", f"mean{SHUFFLED}")
METHODS = (*PUBLISHED, *CONTROLS)
"""What is run by default."""

PENALTIES: Mapping[int, tuple[float, ...]] = MappingProxyType(
    {
        128: (1e1,),
        256: (1e2,),
        512: (1e3,),
        768: (1e4, 1e5),
        1024: (1e4, 1e5),
        2048: (1e5, 1e6),
        2560: (1e5, 1e6),
        4096: (1e6, 1e7),
        5120: (1e6, 1e7),
    }
)
"""Penalties of probes (lambda) by the width of Pythia models; 5,120 is of the code alone."""

_SAGA = "probe-saga:penalty={},intercept={},l2={:g}"
SWEEPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "table-2a": (
            *(f"probe-saga:penalty=none,intercept={bias}" for bias in (False, True)),
            *(
                _SAGA.format(penalty, bias, weight)
                for penalty in ("l1", "l2", "l1+l2")
                for bias in (False, True)
                for weight in (1e0, 1e1, 1e2, 1e3, 1e4)
                if weight <= 1e2 or (penalty == "l2" and bias)
            ),
        ),
        "table-2b": tuple(f"pca-mean:components={c}" for c in (1, 2, 3, 4, 5)),
        "table-2c": tuple(
            f"das-stopped:lr={rate:g},stop={step + 1}"
            for rate in (1e-3, 5e-3, 1e-2)
            for step in (0, 25, 50, 75, 99)
        ),
    }
)
"""Settings that the paper compares on validation pairs: of probes, of PCA and of DAS."""


@dataclass(frozen=True, repr=False)
class GymMethod(OneLine):
    """A method on models of one width.

    Attributes:
        name: as it is typed.
        candidates: finders by what tells them apart, of which the best on validation counts.
        shuffled: whether labels are dealt out anew before it is fitted.
    """

    name: str
    candidates: Mapping[str, Finder]
    shuffled: bool = False

    @property
    def seeded(self) -> bool:
        """Whether a seed changes what it finds."""
        return self.shuffled or any(has_seed(each) for each in self.candidates.values())


def has_seed(finder: Finder) -> bool:
    """Whether a finder has a seed among its settings, other than the published one of k-means and
    of the SAGA solver, on which little hangs.
    """
    names = [each.name for each in fields(cast(Any, finder))]
    return "seed" in names and finder.name not in ("k-means", "probe-saga")


def spelled_methods(names: Sequence[str]) -> tuple[str, ...]:
    """Methods as they are typed, a sweep written out, each once.

    Raises:
        BadUsage: none.
    """
    found = [text for name in names for text in SWEEPS.get(name, (name,))]
    if not found:
        raise BadUsage(f"Name a method, such as {', '.join(METHODS)}; got none.")
    return tuple(dict.fromkeys(found))


def gym_method(text: str, width: int) -> GymMethod:
    """A method by what is typed, with the published settings for models of a width.

    Args:
        text: a name of `FINDERS`, with settings if wanted: "das:k=4", "probe:l2=100".

    Raises:
        UnknownName: no such method or setting.
        BadUsage: a setting of another type.
    """
    name, _, settings = text.partition(":")
    given = {part.partition("=")[0].strip() for part in settings.split(",")}
    candidates: dict[str, Finder] = {}
    for preset in _presets(name.strip(), width):
        rest = {key: value for key, value in preset.items() if key not in given}
        told = {key: value for key, value in rest.items() if key in ("l2",)}
        label = ", ".join(f"{key}={value:g}" for key, value in told.items())
        candidates[label] = FINDERS.make(text, **rest)
    return GymMethod(text, MappingProxyType(candidates), name.strip().endswith(SHUFFLED))


def _presets(name: str, width: int) -> list[dict[str, Any]]:
    """The published settings of a method, one for each candidate."""
    if name in ("das", "das-stopped"):
        return [DAS.profiles["causalgym-2024"]]
    if name.partition(SHUFFLED)[0] in ("probe", "probe-saga"):
        nearest = min(PENALTIES, key=lambda known: abs(math.log(known / width)))
        return [{"l2": weight} for weight in PENALTIES[nearest]]
    return [{}]
