"""Submissions to MIB's causal track (Mueller et al. 2025, appendix D), read as data.

    submission/
        ioi_linear_params.json                        see `mib_coefficients`
        TASK_MODELCLASS_VARIABLE/[METHOD/]UNIT_...    three files a unit: see `mib_unit`

Each folder that holds units is one alignment; MIB's evaluator takes those of METHOD one by one, and
only where none stand beside them. The units of an ioi_task folder are heads that are exchanged
together; all others are sites of their own.

featurizer.py and token_position.py, which MIB's evaluator runs, are never run here: a folder with
code is refused, unless the code is to be ignored. Positions of the tasks need none.

*Where MIB's evaluator reads otherwise*, which is a warning each: it drops the indices and exchanges
all features; it takes [] as all features, where here it is none of them; it exchanges the whole
vector where a layer lacks a unit at one of the task's positions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from mechassay.errors import BadFile, one_of
from mechassay.features.featurizer import ChosenFeatures, Featurizer, Mask, decoder_of
from mechassay.features.fit import Fit
from mechassay.interventions.model_shape import ModelShape
from mechassay.interventions.site import Site, load_site
from mechassay.models.model import Model
from mechassay.submissions import BESIDE, CODE, LEADS_OUT, FoundT, Problems, leads_out
from mechassay.variables.mib_board import MIB_BOARD, BoardTask, MIBBoard
from mechassay.variables.mib_coefficients import LINEAR, PARAMETERS, SHORT, read_coefficients
from mechassay.variables.mib_unit import (
    FEATURIZER,
    INDICES,
    INVERSE,
    ROLES,
    check_inverse,
    file_of,
    read_featurizer,
    read_indices,
)
from mechassay.variables.models.ioi import LogitDifference
from mechassay.variables.variable_alignment import VariableAlignment

_UNIT = re.compile(rf"(?P<unit>.+?)_(?P<role>{'|'.join(ROLES)})")


def read_mib_folder(
    folder: str | Path,
    *,
    model: Model | None = None,
    featurizers: Mapping[str, Featurizer] | None = None,
    ignore_code: bool = False,
    board: MIBBoard = MIB_BOARD,
    only: str = "",
) -> tuple[VariableAlignment, ...]:
    """The alignments of a submission to MIB's causal track; nothing in it is executed.

    Args:
        model: what the folders of its class are about; the board's own if not given.
        featurizers: by site, of units that have indices alone: MIB never saves SAEs.
        ignore_code: read a folder with featurizer.py or token_position.py without them.
        board: the tasks and models that there are.
        only: the folder of one alignment (`MIBPart.inside`); no other is opened.

    Raises:
        BadFile: the first problem, and how many more there are; see `mib_problems`.
        UnknownName: the board has no model of the given one's class.
    """
    found = Problems()
    read = _read(Path(folder), found, model, featurizers or {}, ignore_code, board, only)
    found.refuse(Path(folder))
    return read


class MIBPart(NamedTuple):
    """An alignment of a submission by the names of its folders.

    Attributes:
        inside: its folder, relative to that of the submission.
        task, variable: as we call them.
        model_class: of the language model.
        method: "" where the track has one for each folder.
    """

    inside: str
    task: str
    variable: str
    model_class: str
    method: str


def mib_parts(folder: str | Path, *, board: MIBBoard = MIB_BOARD, only: str = "") -> list[MIBPart]:
    """What a submission has alignments of, by the names of its folders; no file is opened.

    Args:
        only: the name of a folder in it; no other is looked into.

    Raises:
        BadFile: there is no such folder, or a link leads out of it. BadUsage: a folder's name.
    """
    root, found = Path(folder), Problems()
    if not root.is_dir():
        raise BadFile(f"{folder}: there is no such folder.")
    parts = list(_OpenFolder(root, found, None, {}, True, board, only).parts())
    found.refuse(root)
    return parts


def mib_problems(
    folder: str | Path,
    *,
    model: Model | None = None,
    featurizers: Mapping[str, Featurizer] | None = None,
    ignore_code: bool = False,
    board: MIBBoard = MIB_BOARD,
) -> Problems:
    """All that is wrong with a submission's folder, warnings too; see `read_mib_folder`.

    Raises:
        UnknownName: the board has no model of the given one's class.
    """
    found = Problems()
    _read(Path(folder), found, model, featurizers or {}, ignore_code, board)
    return found


# Reading


def _read(
    folder: Path,
    found: Problems,
    model: Model | None,
    featurizers: Mapping[str, Featurizer],
    ignore_code: bool,
    board: MIBBoard,
    only: str = "",
) -> tuple[VariableAlignment, ...]:
    if model is not None:
        one_of("class of a model of MIB's causal track", type(model.hf).__name__, board.models)
    if not folder.is_dir():
        found.note(".", f"there is no folder {folder}.")
        return ()
    given = {str(load_site(site)): each for site, each in featurizers.items()}
    submission = _OpenFolder(folder, found, model, given, ignore_code, board, only)
    read = list(submission.alignments())
    if not read and not found.errors:
        found.note(".", "no units: folders are named TASK_MODELCLASS_VARIABLE.")
    return tuple(read)


@dataclass(frozen=True, eq=False)
class _OpenFolder:
    """A submission that is read; what is wrong goes to `found`, and the rest is read on.

    Attributes:
        given: featurizers by site, of units without files of theirs.
        only: the folder of the one alignment that is read; all if empty.
    """

    root: Path
    found: Problems
    model: Model | None
    given: Mapping[str, Featurizer]
    ignore_code: bool
    board: MIBBoard
    only: str = ""

    def alignments(self) -> Iterator[VariableAlignment]:
        """Of all folders."""
        files, folders = self._inside(self.root)
        coefficients: Mapping[str, LogitDifference] | None = None
        for path in files:
            if path.name == PARAMETERS:
                coefficients = self.found.tried(path.name, partial(read_coefficients, path), path)
            elif path.name not in BESIDE:
                self._extra(path)
        for folder in folders:
            if not self._is_meant(folder):
                continue
            parsed = self.found.tried(folder.name, partial(self.board.parsed, folder.name))
            if parsed is None:
                continue
            linear = self._linear(parsed[1], coefficients) if parsed[0] == LINEAR else None
            for inside, method, files_inside in self._groups(folder):
                if self.only and self._name(inside) != self.only:
                    continue
                read = self._alignment(inside, method, files_inside, parsed)
                if read is not None:
                    yield replace(read, coefficients=linear)

    def _is_meant(self, folder: Path) -> bool:
        return folder.name == self.only.split("/")[0] if self.only else folder.name not in BESIDE

    def parts(self) -> Iterator[MIBPart]:
        """Of all folders, by their names."""
        for folder in self._inside(self.root)[1]:
            if self._is_meant(folder):
                task, kind, variable = self.board.parsed(folder.name)
                about = self.board.tasks[task]
                ours = about.name, about.variables[variable]
                for inside, method, _ in self._groups(folder):
                    yield MIBPart(self._name(inside), *ours, kind, method)

    def _inside(self, folder: Path) -> tuple[list[Path], list[Path]]:
        """Files and folders in a folder that may be opened."""
        files, folders = list[Path](), list[Path]()
        for path in sorted(folder.iterdir()):
            if leads_out(path, self.root):
                self.found.note(self._name(path), LEADS_OUT)
            elif path.suffix == ".py" or path.name == "__pycache__":
                self.found.note(self._name(path), CODE, warning=self.ignore_code)
            elif path.is_dir():
                folders.append(path)
            elif path.is_file():
                files.append(path)
            else:
                self.found.note(self._name(path), "is no regular file.")
        return files, folders

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _extra(self, path: Path) -> None:
        self.found.note(
            self._name(path), "is no part of a submission and is not read.", warning=True
        )

    def _linear(
        self, kind: str, coefficients: Mapping[str, LogitDifference] | None
    ) -> LogitDifference | None:
        """The coefficients of a model, by the names that MIB's evaluator looks for."""
        if coefficients is None:
            if not (self.root / PARAMETERS).exists():
                self.found.note(PARAMETERS, f"there is no such file; folders of {LINEAR} need it.")
            return None
        names = (kind, SHORT.get(kind, kind), "default")
        name = next((name for name in names if name in coefficients), None)
        if name is None:
            known = ", ".join(coefficients) or "none"
            self.found.note(
                PARAMETERS, f"has no coefficients of {' or '.join(names)}; it has {known}."
            )
            return None
        return coefficients[name]

    def _groups(self, folder: Path) -> Iterator[tuple[Path, str, list[Path]]]:
        """Folders that hold units, this one or those in it, with their methods and their files."""
        files, folders = self._inside(folder)
        if any(_UNIT.fullmatch(path.name) for path in files):
            yield folder, "", files
            for path in folders:
                self._extra(path)
            return
        for path in files:
            self._extra(path)
        if not folders:
            self.found.note(folder.name, "no units.")
        for path in folders:
            inside, deeper = self._inside(path)
            yield path, path.name, inside
            for each in deeper:
                self._extra(each)

    def _alignment(
        self, folder: Path, method: str, files: Sequence[Path], parsed: tuple[str, str, str]
    ) -> VariableAlignment | None:
        """What the units of a folder say; None if nothing of it can be read."""
        task, kind, variable = parsed
        here, about, model = self._name(folder), self.board.tasks[task], self.board.models[kind]
        loaded = self.model if class_of(self.model) == kind else None
        shape = model.shape if loaded is None else ModelShape.of(loaded)
        name = model.name if loaded is None else loaded.name
        units: dict[str, set[str]] = {}
        for path in files:
            match = _UNIT.fullmatch(path.name)
            if match is None:
                self._extra(path)
            else:
                units.setdefault(match["unit"], set()).add(match["role"])
        if not units:
            self.found.note(here, "no units.")
        read: dict[Site, ChosenFeatures] = {}
        for unit, roles in units.items():
            at = f"{here}/{unit}"
            site = self.found.tried(at, partial(self.board.site, task, unit))
            if site is None or not self.found.tried(
                at, partial(site.check_graph, shape.graph, name)
            ):
                continue
            if site in read:
                self.found.note(at, f"is the same site as another unit: {site}.")
                continue
            features = self._unit(folder, unit, roles, site, shape.width(site))
            if features is not None:
                read[site] = features
        if not read:
            return None
        for warning in _read_otherwise(about, shape, read):
            self.found.note(here, warning, warning=True)
        provenance = {"source": f"{here} of a submission to MIB's causal track"}
        fit = Fit(
            *_featurizers_and_masks(read),
            provenance=MappingProxyType(provenance),
            model=loaded,
            # MIB exchanges all heads of a folder at once.
            together=about.part == "heads",
        )
        ours = about.variables[variable]
        return VariableAlignment(about.name, ours, name, fit, shape=shape, method=method)

    def _unit(
        self, folder: Path, unit: str, roles: set[str], site: Site, width: int
    ) -> ChosenFeatures | None:
        """What the files of a unit say; each file that is wrong is one problem."""
        place = f"{self._name(folder)}/{unit}"

        def tried(role: str, read: Callable[[], FoundT]) -> FoundT | None:
            path = file_of(folder, unit, role)
            if role in roles:
                return self.found.tried(f"{place}_{role}", read, path)
            if not leads_out(path, self.root):  # Said already, and not to be opened.
                self.found.note(f"{place}_{role}", "there is no such file.")
            return None

        before = len(self.found.errors)
        if roles == {INDICES}:
            found = self.given.get(str(site))
            if found is None:
                self.found.note(
                    place,
                    "has indices and no featurizer: MIB never saves SAEs; the reader has to be"
                    f" given the featurizer of {site}.",
                )
        else:
            found = tried(FEATURIZER, partial(read_featurizer, folder, unit, width))
            tried(INVERSE, partial(check_inverse, folder, unit, found))
        decoder = None if found is None else decoder_of(found)
        if decoder is not None and decoder.shape[1] != width:
            self.found.note(
                place, f"values have {width} numbers; its features are of {decoder.shape[1]}."
            )
        n_features = getattr(found, "width", None) if decoder is None else len(decoder)
        chosen = tried(INDICES, partial(read_indices, folder, unit, n_features))
        if found is None or len(self.found.errors) > before:
            return None
        return ChosenFeatures(found, chosen)


def class_of(model: Model | None) -> str:
    """The class of a loaded model, as MIB's folders name it; empty without one."""
    return "" if model is None else type(model.hf).__name__


def _featurizers_and_masks(
    read: Mapping[Site, ChosenFeatures],
) -> tuple[Mapping[Site, Featurizer], Mapping[Site, Mask]]:
    """In the order of layers, heads and positions."""
    order = sorted(read, key=lambda site: (site.layer, site.heads, str(site.position)))
    masks = {site: read[site].chosen for site in order}
    return (
        MappingProxyType({site: read[site].featurizer for site in order}),
        MappingProxyType({site: mask for site, mask in masks.items() if mask is not None}),
    )


def _read_otherwise(
    about: BoardTask, shape: ModelShape, read: Mapping[Site, ChosenFeatures]
) -> Iterator[str]:
    """Where MIB's evaluator does something else than what the files say."""
    masks = [each.chosen for each in read.values() if each.chosen is not None]
    empty = [str(site) for site, each in read.items() if not _any(each)]
    if empty:
        yield (
            f"no feature is exchanged at {', '.join(empty[:3])}{' …' * (len(empty) > 3)}; MIB's"
            " code takes an empty list as all features."
        )
    if any(not bool(mask.all()) for mask in masks):
        yield "MIB's evaluator drops the indices and exchanges all features."
    if about.part != "resid":
        return
    layers = sorted({site.layer for site in read})
    lacking = [
        f"resid.{layer}@{position}"
        for layer in layers
        for position in about.positions.values()
        if Site(layer, position) not in read
    ]
    if lacking:
        yield (
            f"{len(lacking)} sites have no featurizer, such as {lacking[0]}: MIB's evaluator"
            " exchanges the whole vector there."
        )
    if len(layers) < shape.graph.n_layers:
        yield (
            f"{len(layers)} of {shape.graph.n_layers} layers: the board then shows the best layer"
            " only, and no average."
        )


def _any(features: ChosenFeatures) -> bool:
    return features.chosen is None or bool(features.chosen.any())
