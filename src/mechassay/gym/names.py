"""What runs on gym tasks name: tasks and their families, and methods; nothing is loaded here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from mechassay.utils.registry import Registry

ALL_TASKS = "all"
FILES = (".yaml", ".yml")
"""Endings of files that have a gym task."""
FAMILIES = MappingProxyType(
    {
        "agreement": (
            "agr_gender",
            "agr_sv_num_subj-relc",
            "agr_sv_num_obj-relc",
            "agr_sv_num_pp",
        ),
        "licensing": (
            "agr_refl_num_subj-relc",
            "agr_refl_num_obj-relc",
            "agr_refl_num_pp",
            "npi_any_subj-relc",
            "npi_any_obj-relc",
            "npi_ever_subj-relc",
            "npi_ever_obj-relc",
        ),
        "garden path": (
            "garden_mvrr",
            "garden_mvrr_mod",
            "garden_npz_obj",
            "garden_npz_obj_mod",
            "garden_npz_v-trans",
            "garden_npz_v-trans_mod",
        ),
        "gross syntactic state": (
            "gss_subord",
            "gss_subord_subj-relc",
            "gss_subord_obj-relc",
            "gss_subord_pp",
        ),
        "long-distance": (
            "cleft",
            "cleft_mod",
            "filler_gap_embed_3",
            "filler_gap_embed_4",
            "filler_gap_hierarchy",
            "filler_gap_obj",
            "filler_gap_pp",
            "filler_gap_subj",
        ),
    }
)
"""The published tasks of each family, in the order of the paper."""
FAMILY_OF = {name: family for family, names in FAMILIES.items() for name in names}

GYM_TASKS = Registry(
    "gym task",
    dict.fromkeys(FAMILY_OF, "mechassay.gym.causalgym:published_task"),
    plural="gym_tasks",
)
"""By name."""

SHUFFLED = "-shuffled"
RANDOM, VANILLA = "random", "vanilla"

FINDERS = Registry(
    "gym method",
    {
        "das": "mechassay.features.das:DAS",
        "das-stopped": "mechassay.gym.methods:StoppedDAS",
        "probe": "mechassay.features.probes:Probe",
        "probe-saga": "mechassay.gym.methods:SagaProbe",
        "mean": "mechassay.features.probes:DiffInMeans",
        "lda": "mechassay.features.probes:LDA",
        "pca": "mechassay.features.probes:PCA",
        "pca-mean": "mechassay.gym.methods:AveragedAxes",
        "k-means": "mechassay.features.probes:KMeans",
        RANDOM: "mechassay.features.probes:RandomDirections",
        VANILLA: "mechassay.features.probes:FullVector",
        f"das{SHUFFLED}": "mechassay.features.das:DAS",
        f"probe{SHUFFLED}": "mechassay.features.probes:Probe",
        f"probe-saga{SHUFFLED}": "mechassay.gym.methods:SagaProbe",
        f"mean{SHUFFLED}": "mechassay.features.probes:DiffInMeans",
        f"lda{SHUFFLED}": "mechassay.features.probes:LDA",
    },
    plural="gym_methods",
)
"""By name; other packages add finders under the entry point group `mechassay.gym_methods`."""

PUBLISHED = ("das", "probe", "mean", "pca", "k-means", "lda", RANDOM, VANILLA)
"""The methods of table 1, in its order, and the whole vector."""
WITHOUT_LABELS = ("pca", "pca-mean", "k-means")
"""Methods that look at values alone, whatever their sentences' labels are."""

_WORDS = {
    "das": "DAS",
    "das-stopped": "DAS, stopped",
    "probe-saga": "probe (SAGA)",
    "mean": "difference of means",
    "lda": "LDA",
    "pca": "PCA",
    "pca-mean": "mean of principal axes",
    RANDOM: "random direction",
    VANILLA: "whole vector",
}

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


SWEPT = frozenset(method for methods in SWEEPS.values() for method in methods)


def shuffled_of(method: str) -> str:
    """The control of a method that reads labels, as it is typed: the same on labels that are dealt
    out anew. "" for a method that reads none, and for those of sweeps.
    """
    name, colon, settings = method.partition(":")
    known = f"{name.strip()}{SHUFFLED}" in FINDERS.built_in and method not in SWEPT
    return f"{name.strip()}{SHUFFLED}{colon}{settings}" if known else ""


def with_shuffled(methods: Sequence[str]) -> tuple[str, ...]:
    """Methods, and behind them the controls on shuffled labels of those that read labels."""
    return tuple(dict.fromkeys((*methods, *filter(None, map(shuffled_of, methods)))))


METHODS = with_shuffled(PUBLISHED)
"""The published methods and their controls."""


def is_control(method: str) -> bool:
    """Whether it is none that looks for a direction: the whole vector, what is drawn at random, and
    what is fitted on shuffled labels.
    """
    name = method.partition(":")[0].strip()
    return name in (RANDOM, VANILLA) or name.endswith(SHUFFLED)


def in_words(method: str) -> str:
    """A method as pages call it: "DAS (k=4)" for das:k=4."""
    name, _, settings = method.partition(":")
    own = name.strip().removesuffix(SHUFFLED)
    text = _WORDS.get(own, own) + (f" ({settings})" if settings else "")
    return f"{text}, shuffled labels" if name.strip().endswith(SHUFFLED) else text


def task_names(tasks: Sequence[str]) -> tuple[str, ...]:
    """The tasks, families and "all" written out, each once."""
    every = {ALL_TASKS: tuple(task for some in FAMILIES.values() for task in some), **FAMILIES}
    return tuple(dict.fromkeys(task for name in tasks for task in every.get(name, (name,))))
