"""Directions that others found for a gym task: their files, mistakes in them, and their odds.

    FOLDER/                            features/MODEL--TASK of a run, or TASK_MODEL
        METHOD-SEED.safetensors            a fit: directions by site, such as resid.3@subject
        METHOD-SEED-control.safetensors    the same, found for control labels

A site is a layer's residual stream at a region of the task. It has a direction, or k orthonormal
ones; nothing else is an interchange of coordinates. Seeds of a method have the same sites with
as many directions each, and so have its directions for control labels, if there are any. Of
principal axes the directions alone count, no mean and no scale, which change nothing but by
rounding. Files are data; nothing is executed, and nothing is trained.

The odds of the directions (`measure_directions`) stand beside controls at the same sites: the
whole vector, and as many random directions. Of a layer that region counts which is best on
validation items, among those that have directions: with a single one, the region was declared. A
layer without directions counts 0, so that the number is a mean over the same layers for
everybody. Selectivity needs directions for control labels. They are taken as they are, and weak
ones make it high; without them it is undefined.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch

from mechassay.errors import BadUsage, MechassayError, first_line
from mechassay.features.featurizer import Directions, Featurizer, Identity
from mechassay.features.finder import KIND, Fit
from mechassay.features.probes import random_directions
from mechassay.gym.evaluation import Arm, ArmMeasurement, TaskItems, types_of
from mechassay.gym.gym_task import GymTask
from mechassay.gym.pairs import GymPairs
from mechassay.gym.task_odds import (
    CONTROL,
    METHODS_TABLE,
    ORIGINAL,
    RANDOM_DIRECTIONS,
    RIGHT,
    WHOLE_VECTOR,
    TaskOdds,
)
from mechassay.interventions.site import ModelShape, Site, blocks
from mechassay.models.model import Model
from mechassay.results.records import Record
from mechassay.utils.display import BAR, OneLine, Progress
from mechassay.utils.files import (
    BESIDE,
    CODE,
    LEADS_OUT,
    Problems,
    file_hash,
    leads_out,
    no_folder,
    read_tensors,
)
from mechassay.variables.alignment import site_faults

FORM = "METHOD-SEED.safetensors or METHOD-SEED-control.safetensors"
TAKEN = (WHOLE_VECTOR, RANDOM_DIRECTIONS, RIGHT)
"""Names that a record of odds has for something else."""
_NAME = re.compile(r"(?P<method>\w[\w.=,+ -]{0,99}?)-(?P<seed>\d{1,9})(?P<control>-control)?")
_AXES = ("vectors", "axes")


@dataclass(frozen=True, repr=False)
class GivenDirections(OneLine):
    """The directions of one method in a folder.

    Attributes:
        method: its name.
        files: for original and for control labels, in the order of their seeds.
    """

    folder: Path
    method: str
    files: Mapping[str, tuple[Path, ...]]

    @property
    def typed(self) -> str:
        """Where it is, as one text that is unique."""
        return str(self.folder / self.method)

    @property
    def sha256(self) -> str:
        """Of the names and the bytes of its files."""
        every = sorted(path for paths in self.files.values() for path in paths)
        lines = "".join(f"{file_hash(path)}  {path.name}\n" for path in every)
        return hashlib.sha256(lines.encode()).hexdigest()

    @property
    def has_control(self) -> bool:
        """Whether there are directions for control labels."""
        return CONTROL in self.files

    def fits(self) -> Mapping[str, tuple[Fit, ...]]:
        """Its directions, for original and for control labels, a fit each seed.

        Raises:
            BadFile: see `Fit.load`.
        """
        return MappingProxyType(
            {kind: tuple(map(Fit.load, paths)) for kind, paths in self.files.items()}
        )


def given_directions(
    folder: str | Path, regions: Sequence[str], shape: ModelShape | None = None, model: str = ""
) -> list[GivenDirections]:
    """The directions of every method in a folder, checked.

    Args:
        regions: of the task, at which directions may be.
        shape: of the model; None: any.
        model: what messages call it.

    Raises:
        BadFile: what is wrong first, and how many mistakes there are.
    """
    problems = Problems()
    read = read_directions(Path(folder), regions, shape, model, problems)
    problems.refuse(Path(folder), "mechassay gym validate")
    return read


def read_directions(
    folder: Path,
    regions: Sequence[str],
    shape: ModelShape | None,
    model: str,
    problems: Problems,
    most: int | None = None,
) -> list[GivenDirections]:
    """The directions of every method in a folder; what is wrong with it is added to `found`.

    Args:
        most: directions at a site; None: any number.
    """
    if not folder.is_dir():
        problems.note(".", f"{no_folder(folder)}: {folder}.")
        return []
    held: dict[str, dict[str, dict[int, Path]]] = {}
    for path, method, seed, kind in _named(folder, problems):
        seeds = held.setdefault(method, {}).setdefault(kind, {})
        if seed in seeds:
            problems.note(path.name, f"is of the same seed as {seeds[seed].name}.")
        seeds[seed] = path
    if not held and not problems.errors:
        problems.note(".", f"holds no directions: no files {FORM}.")
    made: list[GivenDirections] = []
    for method, kinds in held.items():
        files = {
            kind: tuple(kinds[kind][seed] for seed in sorted(kinds[kind]))
            for kind in (ORIGINAL, CONTROL)
            if kind in kinds
        }
        first = next(iter(files.values()))[0].name
        if set(kinds.get(CONTROL, kinds.get(ORIGINAL, {}))) != set(kinds.get(ORIGINAL, {})):
            problems.note(
                first,
                f"{method} has the seeds {_listed(kinds.get(ORIGINAL, {}))} for original labels and"
                f" {_listed(kinds[CONTROL])} for control labels; they have to be the same.",
            )
        _check_fits(files, regions, shape, model, problems, most)
        made.append(GivenDirections(folder, method, MappingProxyType(files)))
    return made


def _named(folder: Path, problems: Problems) -> Iterator[tuple[Path, str, int, str]]:
    """The files that may be opened, with their method, seed and kind of labels."""
    for path in sorted(folder.iterdir()):
        name = _NAME.fullmatch(path.stem)
        if leads_out(path, folder):
            problems.note(path.name, LEADS_OUT)
        elif path.suffix == ".py":
            problems.note(path.name, CODE)
        elif path.name in BESIDE:
            continue
        elif path.suffix != ".safetensors" or name is None or not path.is_file():
            problems.note(path.name, f"is no file of directions ({FORM}).")
        elif name["method"] in TAKEN:
            problems.note(path.name, f"a method cannot be called {name['method']!r} here.")
        else:
            kind = CONTROL if name["control"] else ORIGINAL
            yield path, name["method"], int(name["seed"]), kind


def _listed(seeds: Mapping[int, Path]) -> str:
    return ", ".join(map(str, sorted(seeds))) or "none"


def _check_fits(
    files: Mapping[str, Sequence[Path]],
    regions: Sequence[str],
    shape: ModelShape | None,
    model: str,
    problems: Problems,
    most: int | None,
) -> None:
    """Note everything that is wrong with the files of a method."""
    first: tuple[str, Mapping[Site, int | None]] | None = None
    for path in (path for paths in files.values() for path in paths):
        before = len(problems)
        problems.tried(path.name, partial(_check_numbers, path, problems), path)
        fit = (
            None
            if len(problems) > before
            else problems.tried(path.name, partial(Fit.load, path), path)
        )
        if fit is None:
            continue
        for fault in _faults(fit, regions, shape, model):
            problems.note(path.name, fault)
        sizes = {site: fit.n_features(site) for site in fit.sites}
        for fault in _too_many(sizes, most):
            problems.note(path.name, fault)
        if first is None:
            first = path.name, sizes
        elif set(sizes) != set(first[1]):
            problems.note(path.name, f"has other sites than {first[0]}.")
        else:
            for fault in _other_sizes(sizes, *first):
                problems.note(path.name, fault)


def _too_many(sizes: Mapping[Site, int | None], most: int | None) -> Iterator[str]:
    """Whether any site has more directions than are allowed: one line."""
    if most is None:
        return
    above = {site: k for site, k in sizes.items() if k is not None and k > most}
    for site, k in list(above.items())[:1]:
        more = f" (too many at {len(above) - 1} more)" if len(above) > 1 else ""
        yield f"Site {site}: got {k} directions; a site may have at most {most} here{more}."


def _other_sizes(
    sizes: Mapping[Site, int | None], name: str, first: Mapping[Site, int | None]
) -> Iterator[str]:
    """Whether any site has another number of directions than in the first file: one line."""
    for site in [site for site, k in sizes.items() if k != first[site]][:1]:
        yield (
            f"Site {site}: all files of a method need as many directions; got {sizes[site]}, and"
            f" {first[site]} in {name}."
        )


def _check_numbers(path: Path, problems: Problems) -> None:
    """Note what is no number, and what is no direction, site by site."""
    tensors, header = read_tensors(path, KIND)
    stored = header.get("sites")
    if not isinstance(stored, list):
        return  # Whoever reads the fit says what is wrong with it.
    sites = [entry.get("site") if isinstance(entry, dict) else None for entry in stored]
    places = {str(number): site for number, site in enumerate(sites)}
    if len(set(map(str, sites))) < len(sites):
        problems.note(path.name, "names a site twice.")
    for name, tensor in tensors.items():
        number, _, part = name.partition(".")
        site = places.get(number)
        if site is None:
            continue
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            problems.note(path.name, f"{site}: numbers that are NaN or infinite.")
        elif part in _AXES and tensor.ndim == 2 and not bool((tensor != 0).any(dim=0).all()):
            problems.note(path.name, f"{site}: a direction that is zero.")


def _faults(
    fit: Fit, regions: Sequence[str], shape: ModelShape | None, model: str
) -> Iterator[str]:
    if not len(fit):
        yield "has no site."
    if fit.together:
        yield "its sites are meant together; here each is exchanged alone."
    yield from site_faults(fit, shape, model)
    mistakes: dict[str, list[str]] = {}
    for site in fit.sites:
        for mistake in _site_mistakes(fit, site, regions):
            # A mistake that names its site is the same one at another site.
            mistakes.setdefault(mistake.replace(str(site), "SITE"), []).append(str(site))
    for mistake, sites in mistakes.items():
        more = f" ({len(sites)} sites in all)" if len(sites) > 1 else ""
        yield mistake.replace("SITE", sites[0]).removesuffix(".") + f"{more}."


def _site_mistakes(fit: Fit, site: Site, regions: Sequence[str]) -> Iterator[str]:
    if site.part != "resid" or site.layer < 0:
        yield f"Site {site}: directions are at the residual stream after a block, resid.LAYER."
    if site.position not in regions:
        yield f"Site {site}: the task has the regions {', '.join(regions)}."
    try:
        if not fit.directions(site).shape[1]:
            raise BadUsage(f"no direction is meant at {site}.")
    except MechassayError as error:
        yield first_line(error)


SPLITS = ("validation", "test")
DRAWS = 3
"""Draws of random directions."""
NOT_GIVEN = "no directions were given."
NO_CONTROL = "Selectivity is undefined: no directions for control labels were given."


def measure_directions(
    model: Model,
    task: GymTask | Mapping[str, GymPairs],
    given: GivenDirections,
    *,
    layers: Sequence[int] | int | None = None,
    control: Mapping[str, str] | Sequence[str] | None = None,
    limits: Mapping[str, int] | None = None,
    seed: int = 0,
    progress: Progress = BAR,
) -> TaskOdds:
    """The odds of given directions beside controls: the whole vector, and random directions.

    Args:
        task: a gym task, or its pairs of validation and test.
        layers: blocks; all of them by default.
        control: the control label of each type; dog and give by default.
        limits: interchanges by split, where they are not the split's.
        seed: of the pairs, of random directions and of the bootstrap.

    Raises:
        BadFile: files that cannot be read. BadUsage: no directions in these layers, a split is
            missing. BadPairs: labels that are not one token each.
    """
    pairs = (
        dict(task) if isinstance(task, Mapping) else task.splits(model, seed=seed, limits=limits)
    )
    labels = (True if control is None else control) if given.has_control else False
    items = TaskItems.of("measure_directions", model, pairs, SPLITS, types_of(task, pairs), labels)
    measured = ArmMeasurement(model, items, blocks(model, layers), seed, progress)
    every = {
        kind: [_within(fit, measured.sites) for fit in fits] for kind, fits in given.fits().items()
    }
    own = every[ORIGINAL]
    if not len(own[0]):
        raise BadUsage(f"{given.typed} has no directions in layers {measured.layers}.")
    lacking = {site: NOT_GIVEN for site in measured.sites if site not in own[0]}
    given_at = np.array([site in own[0] for site in measured.sites])
    held = given_at.reshape(len(measured.layers), len(items.regions))
    arms = [
        Arm(given.method, "", number, dict(zip(every, fits, strict=True)), lacking)
        for number, fits in enumerate(zip(*every.values(), strict=True))
    ]
    for name, fits in _controls(model, own[0], seed).items():
        arms += [
            Arm(name, "", number, dict.fromkeys((ORIGINAL, CONTROL), fit), lacking)
            for number, fit in enumerate(fits)
        ]
    # In a layer without any, each region is as good as the others: their odds are 0.
    offered = held | ~held.any(axis=1, keepdims=True)
    odds = replace(measured, offered=offered).result(arms, (WHOLE_VECTOR, RANDOM_DIRECTIONS))
    return odds if given.has_control else replace(odds, undefined=NO_CONTROL)


def best_draw(record: Record) -> float:
    """The mean odds of the best draw of random directions; NaN if the record has none. Few draws
    say little of their spread, so directions do more than chance if their interval is above it.
    """
    if not record.has_table(METHODS_TABLE):
        return math.nan
    highest = record.table(METHODS_TABLE).where(method=RANDOM_DIRECTIONS).numbers("seed_high")
    return float(highest[0]) if len(highest) else math.nan


def _within(fit: Fit, sites: Sequence[Site]) -> Fit:
    """The directions of a fit that are at some sites."""
    here = {site: _along(fit, site) for site in sites if site in fit}
    return Fit(MappingProxyType(here), provenance=fit.provenance)


def _along(fit: Fit, site: Site) -> Featurizer:
    """The directions that are meant at a site, without mean and scale: huge ones round all that is
    exchanged away.
    """
    featurizer = fit.featurizers[site]
    if isinstance(featurizer, Identity) and site not in fit.chosen:
        return featurizer  # The whole vector, exactly.
    return Directions(fit.directions(site))


def _controls(model: Model, fit: Fit, seed: int) -> dict[str, list[Fit]]:
    """What stands beside directions, at the same sites: fits of each control, a draw each."""
    width = model.decoder.d_model
    whole = Fit(MappingProxyType(dict.fromkeys(fit.sites, Identity(width))))
    drawn = [
        Fit(
            MappingProxyType(
                {
                    site: random_directions(site, width, fit.directions(site).shape[1], seed + draw)
                    for site in fit.sites
                }
            )
        )
        for draw in range(DRAWS)
    ]
    return {WHOLE_VECTOR: [whole], RANDOM_DIRECTIONS: drawn}
