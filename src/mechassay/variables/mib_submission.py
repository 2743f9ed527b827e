"""Submissions to MIB's causal track (Mueller et al. 2025, appendix D), read and written as data.

    submission/
        ioi_linear_params.json                      {model: {bias, token_coeff, position_coeff}}
        TASK_MODELCLASS_VARIABLE/[METHOD/]UNIT_...  three files a unit

ioi_linear_params.json holds coefficients of IOI's linear causal model. What the files of a unit
hold is in `mechassay.variables.mib_format`. Each folder that holds units is one alignment; MIB's
evaluator takes those of METHOD one by one, and only where none stand beside them. The units of
an ioi_task folder are heads that are exchanged together; all others are sites of their own.

featurizer.py and token_position.py, which MIB's evaluator runs, are never run here: a folder
with code is refused, unless the code is to be ignored. Positions of the tasks need none.

*Where MIB's evaluator reads otherwise*, which is a warning each: it drops the indices and
exchanges all features; it takes [] as all features, where here it is none of them; it exchanges
the whole vector where a layer lacks a unit at one of the task's positions.

Where folders of alignments are given, a folder is one alignment (alignment.json), a run that found
some or its folder `alignments`, a submission, which holds many, or one of the folders
TASK_MODELCLASS_VARIABLE in it. What an alignment is
about is told by its header, or by the names of its folders, so a plan can list large files
without opening them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite, nan
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from mechassay.causal_models.hypothesis import Hypothesis, hypotheses
from mechassay.causal_models.ioi import LogitDifference
from mechassay.errors import BadFile, BadUsage, GraphMismatch, MechassayError, one_of
from mechassay.features.featurizer import ChosenFeatures, Featurizer, Mask, decoder_of
from mechassay.features.finder import Fit
from mechassay.interventions.site import ModelShape, Site, load_site
from mechassay.models.model import Model
from mechassay.utils.arguments import checked
from mechassay.utils.files import (
    BESIDE,
    CODE,
    LEADS_OUT,
    FoundT,
    Problems,
    folder_hash,
    leads_out,
    no_folder,
    read_json,
    write_text,
)
from mechassay.variables.alignment import (
    ALIGNMENTS,
    HEADER,
    VariableAlignment,
    read_alignment,
    read_header,
    site_faults,
)
from mechassay.variables.mib_format import (
    FEATURIZER,
    INDICES,
    INVERSE,
    MIB_BOARD,
    ROLES,
    BoardModel,
    BoardTask,
    MIBBoard,
    check_inverse,
    file_of,
    read_featurizer,
    read_indices,
    rotation_of,
    write_unit,
)

PARAMETERS = "ioi_linear_params.json"
COEFFICIENTS = {"bias": "bias", "token": "token_coeff", "position": "position_coeff"}
LINEAR = "ioi_task"
SHORT = {
    "GPT2LMHeadModel": "gpt2",
    "Qwen2ForCausalLM": "qwen",
    "Gemma2ForCausalLM": "gemma",
    "LlamaForCausalLM": "llama",
}
"""What MIB's script that fits the coefficients calls a model."""


def read_coefficients(path: Path) -> Mapping[str, LogitDifference]:
    """By the file's names of models."""
    fits: dict[str, LogitDifference] = {}
    for name, row in read_json(path).items():
        numbers: dict[str, Any] = row if isinstance(row, dict) else {}
        values = {ours: _number(numbers.get(theirs)) for ours, theirs in COEFFICIENTS.items()}
        if not all(map(isfinite, values.values())):
            raise BadFile(
                f"{path}: {name[:40]!r} needs {', '.join(COEFFICIENTS.values())} as numbers."
            )
        r2, source = _number(numbers.get("score")), {"source": path.name}
        fits[name] = LogitDifference(**values, r2=r2, n=0, conditions={}, source=source)
    return fits


def _number(value: object) -> float:
    """A JSON number; NaN for anything else."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return nan
    try:
        return float(value)
    except OverflowError:
        return nan


def plain_coefficients(alignment: VariableAlignment) -> dict[str, float]:
    """Those of an alignment, by the file's names.

    Raises:
        BadUsage: it has none.
    """
    linear = alignment.coefficients
    if linear is None:
        raise BadUsage(
            f"{alignment.variable} of {alignment.model}: the linear causal model needs its"
            " coefficients."
        )
    return {theirs: float(getattr(linear, ours)) for ours, theirs in COEFFICIENTS.items()}


_UNIT = re.compile(rf"(?P<unit>.+?)_(?P<role>{'|'.join(ROLES)})")


@checked
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
    problems = Problems()
    read = _read(Path(folder), problems, model, featurizers or {}, ignore_code, board, only)
    problems.refuse(Path(folder))
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
    root, problems = Path(folder), Problems()
    if not root.is_dir():
        raise BadFile(f"{folder}: {no_folder(folder)}.")
    parts = list(_OpenFolder(root, problems, None, {}, True, board, only).parts())
    problems.refuse(root)
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
    problems = Problems()
    _read(Path(folder), problems, model, featurizers or {}, ignore_code, board)
    return problems


# Reading


def _read(
    folder: Path,
    problems: Problems,
    model: Model | None,
    featurizers: Mapping[str, Featurizer],
    ignore_code: bool,
    board: MIBBoard,
    only: str = "",
) -> tuple[VariableAlignment, ...]:
    if model is not None:
        one_of("class of a model of MIB's causal track", type(model.hf).__name__, board.models)
    if not folder.is_dir():
        problems.note(".", f"{no_folder(folder)}: {folder}.")
        return ()
    given = {str(load_site(site)): featurizer for site, featurizer in featurizers.items()}
    submission = _OpenFolder(folder, problems, model, given, ignore_code, board, only)
    read = list(submission.alignments())
    if not read and not problems.errors:
        problems.note(".", "no units: folders are named TASK_MODELCLASS_VARIABLE.")
    return tuple(read)


@dataclass(frozen=True, eq=False)
class _OpenFolder:
    """A submission that is read; what is wrong goes to `found`, and the rest is read on.

    Attributes:
        given: featurizers by site, of units without files of theirs.
        only: the folder of the one alignment that is read; all if empty.
    """

    root: Path
    problems: Problems
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
                coefficients = self.problems.tried(
                    path.name, partial(read_coefficients, path), path
                )
            elif path.name not in BESIDE:
                self._extra(path)
        for folder in folders:
            if not self._is_meant(folder):
                continue
            parsed = self.problems.tried(folder.name, partial(self.board.parsed, folder.name))
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
                self.problems.note(self._name(path), LEADS_OUT)
            elif path.suffix == ".py" or path.name == "__pycache__":
                self.problems.note(self._name(path), CODE, warning=self.ignore_code)
            elif path.is_dir():
                folders.append(path)
            elif path.is_file():
                files.append(path)
            else:
                self.problems.note(self._name(path), "is no regular file.")
        return files, folders

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _extra(self, path: Path) -> None:
        self.problems.note(
            self._name(path), "is no part of a submission and is not read.", warning=True
        )

    def _linear(
        self, kind: str, coefficients: Mapping[str, LogitDifference] | None
    ) -> LogitDifference | None:
        """The coefficients of a model, by the names that MIB's evaluator looks for."""
        if coefficients is None:
            if not (self.root / PARAMETERS).exists():
                self.problems.note(
                    PARAMETERS, f"there is no such file; folders of {LINEAR} need it."
                )
            return None
        names = (kind, SHORT.get(kind, kind), "default")
        name = next((name for name in names if name in coefficients), None)
        if name is None:
            known = ", ".join(coefficients) or "none"
            self.problems.note(
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
            self.problems.note(folder.name, "no units.")
        for path in folders:
            inside, deeper = self._inside(path)
            yield path, path.name, inside
            for entry in deeper:
                self._extra(entry)

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
            self.problems.note(here, "no units.")
        read: dict[Site, ChosenFeatures] = {}
        for unit, roles in units.items():
            at = f"{here}/{unit}"
            site = self.problems.tried(at, partial(self.board.site, task, unit))
            if site is None or not self.problems.tried(
                at, partial(site.check_graph, shape.graph, name)
            ):
                continue
            if site in read:
                self.problems.note(at, f"is the same site as another unit: {site}.")
                continue
            features = self._unit(folder, unit, roles, site, shape.width(site))
            if features is not None:
                read[site] = features
        if not read:
            return None
        for warning in _read_otherwise(about, shape, read):
            self.problems.note(here, warning, warning=True)
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
                return self.problems.tried(f"{place}_{role}", read, path)
            if not leads_out(path, self.root):  # Said already, and not to be opened.
                self.problems.note(f"{place}_{role}", "there is no such file.")
            return None

        before = len(self.problems.errors)
        if roles == {INDICES}:
            units = self.given.get(str(site))
            if units is None:
                self.problems.note(
                    place,
                    "has indices and no featurizer: MIB never saves SAEs; the reader has to be"
                    f" given the featurizer of {site}.",
                )
        else:
            units = tried(FEATURIZER, partial(read_featurizer, folder, unit, width))
            tried(INVERSE, partial(check_inverse, folder, unit, units))
        decoder = None if units is None else decoder_of(units)
        if decoder is not None and decoder.shape[1] != width:
            self.problems.note(
                place, f"values have {width} numbers; its features are of {decoder.shape[1]}."
            )
        n_features = getattr(units, "width", None) if decoder is None else len(decoder)
        chosen = tried(INDICES, partial(read_indices, folder, unit, n_features))
        if units is None or len(self.problems.errors) > before:
            return None
        return ChosenFeatures(units, chosen)


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
    masks = [units.chosen for units in read.values() if units.chosen is not None]
    empty = [
        str(site)
        for site, units in read.items()
        if units.chosen is not None and not bool(units.chosen.any())
    ]
    if empty:
        yield (
            f"no feature is exchanged at {', '.join(empty[:3])}{' …' * (len(empty) > 3)}; MIB's"
            " code takes an empty list as all features."
        )
    if any(not bool(mask.all()) for mask in masks):
        yield "MIB's evaluator drops the indices and exchanges all features."
    if about.part != "resid":
        return
    layers = {site.layer for site in read}
    lacking = sites_lacking(about, tuple(read))
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


def sites_lacking(about: BoardTask, sites: Collection[Site]) -> list[Site]:
    """The sites without features in layers that have some, where MIB's evaluator exchanges whole
    vectors; none where heads are exchanged together.
    """
    return [
        Site(layer, position)
        for layer in sorted({site.layer for site in sites})
        for position in about.positions.values()
        if about.part == "resid" and Site(layer, position) not in sites
    ]


@checked
def write_mib_folder(
    alignments: Sequence[VariableAlignment], folder: str | Path, *, board: MIBBoard = MIB_BOARD
) -> list[Path]:
    """Write alignments as a submission to MIB's causal track; returns the files.

    Rotations, PCA's axes (without their mean and scale, which change nothing of an exchange) and
    identities are written as MIB's own code writes them.

    Raises:
        BadUsage: a folder that has something in it; a task, variable, model or position that the
            track does not have; features that are no rotation, such as an SAE's; two alignments of
            one folder; the linear causal model without its coefficients, or with two.
        GraphMismatch: an alignment of a model of another shape than the board's.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadUsage(f"{folder}: there is something already; a folder holds one submission.")
    plan: dict[Path, tuple[VariableAlignment, Mapping[Site, str]]] = {}
    parameters: dict[str, dict[str, float]] = {}
    for alignment in alignments:
        name = board.named(alignment.task, alignment.variable, alignment.model, alignment.shape)
        task, kind, _ = board.parsed(name)
        inside = folder / name / _plain(alignment.method)
        if inside in plan:
            raise BadUsage(f"Two alignments belong into {inside.relative_to(folder)}.")
        plan[inside] = alignment, _checked_units(alignment, task, board.models[kind], board)
        if task == LINEAR:
            plain = plain_coefficients(alignment)
            if parameters.setdefault(SHORT.get(kind, kind), plain) != plain:
                raise BadUsage(f"One model has one set of coefficients; {alignment.model} has two.")
    if not plan:
        raise BadUsage("A submission needs an alignment; got none.")
    mixed = [inside for inside in plan if inside.parent in plan]
    if mixed:
        raise BadUsage(
            f"{mixed[0].parent.name}: name the methods of all its alignments, or of none."
        )
    written: list[Path] = []
    for inside, (alignment, units) in plan.items():
        for site, unit in units.items():
            features = alignment.fit.features(site)
            written += write_unit(inside, unit, features.featurizer, features.chosen)
    if parameters:
        written.append(
            write_text(folder / PARAMETERS, json.dumps(parameters, indent=2, sort_keys=True))
        )
    return written


def _plain(method: str) -> str:
    if method and (Path(method).name != method or not method.strip(".")):
        raise BadUsage(f"A method's name becomes a folder's; {method!r} cannot.")
    return method


def _checked_units(
    alignment: VariableAlignment, task: str, model: BoardModel, board: MIBBoard
) -> Mapping[Site, str]:
    """The units of all sites, if MIB's files can hold them."""
    if alignment.shape not in (None, model.shape):
        raise GraphMismatch(
            f"The alignment is about a model of {alignment.shape}; {model.name} has {model.shape}."
        )
    for fault in site_faults(alignment.fit, model.shape, model.name):
        raise BadUsage(fault)
    units = {site: board.unit(task, site) for site in alignment.fit.sites}
    for site, unit in units.items():
        rotation_of(unit, alignment.fit.featurizer(site))
    return units


FEATURES_SHA256 = "features_sha256"
"""The setting of a method that says which files its features were read from."""
LONGEST = 60


@dataclass(frozen=True)
class GivenAlignment:
    """An alignment in a folder.

    Attributes:
        folder: that was named.
        inside: where it is in a submission to MIB's causal track; "" if the folder is it.
        model_class: of the language model, in such a submission.
        name: of the method that found it; of its folder, if it does not say.
        model: that it says it is about; "" in such a submission.
    """

    folder: Path
    task: str
    variable: str
    causal_model: str
    name: str
    inside: str = ""
    model_class: str = ""
    model: str = ""

    @property
    def typed(self) -> str:
        """Where it is, as one text that is unique."""
        return str(self.folder / self.inside)

    @property
    def sha256(self) -> str:
        """Of the names and the bytes of its files."""
        return folder_hash(self.folder / self.inside)

    def hypothesis(self) -> Hypothesis:
        """What it claims, among the hypotheses about its task.

        Raises:
            UnknownName: nothing is known of the task, or it has no such variable.
            BadUsage: the variable is one of another causal model.
        """
        known = hypotheses(self.task)
        hypothesis = known.get(self.variable)
        if hypothesis is None or self.causal_model not in (hypothesis.model.name, self.task):
            names = ", ".join(
                f"{name} of {hypothesis.model.name}" for name, hypothesis in known.items()
            )
            raise BadUsage(
                f"{self.typed}: {self.variable!r} of the causal model {self.causal_model!r} is"
                f" none of {self.task}'s variables: {names}."
            )
        return hypothesis

    def sites_beside(self, sites: Collection[Site]) -> list[Site]:
        """Where MIB's evaluator exchanges whole vectors for want of features, if it is one of the
        track's.
        """
        known = (about for about in MIB_BOARD.tasks.values() if about.name == self.task)
        about = next(known, None) if self.inside else None
        return [] if about is None else sites_lacking(about, sites)

    def read(self, model: Model) -> VariableAlignment:
        """Its features, for a loaded model.

        Raises:
            BadFile: missing, truncated or foreign files.
            GraphMismatch, BadUsage: it is about another model.
        """
        if not self.inside:
            return VariableAlignment.load(self.folder, model)
        of_board = model if class_of(model) in MIB_BOARD.models else None
        read = read_mib_folder(self.folder, model=of_board, only=self.inside)
        if len(read) != 1:
            raise BadFile(f"{self.typed}: holds {len(read)} alignments; expected one.")
        return read[0].on(model)


def given_alignments(folder: str | Path) -> list[GivenAlignment]:
    """The alignments that a folder holds; no features are read.

    Raises:
        BadFile: there is no such folder, a header that cannot be read, a submission without
            alignments. BadUsage: a folder of a submission that MIB's track does not have.
    """
    folder = Path(folder)
    if own := alignment_folders(folder):
        return [_given(alignment) for alignment in own]
    root, only = (folder.parent, folder.name) if _is_of_mib(folder) else (folder, "")
    parts = mib_parts(root, only=only)
    if not parts:
        raise BadFile(
            f"{folder}: holds no alignment: neither {HEADER} nor folders named"
            " TASK_MODELCLASS_VARIABLE."
        )
    return [
        GivenAlignment(
            root,
            part.task,
            part.variable,
            part.task,
            _one_line(part.method or folder.name),
            part.inside,
            part.model_class,
        )
        for part in parts
    ]


def alignment_folders(folder: Path) -> list[Path]:
    """The folders with an alignment.json: the folder itself, or those of a run that it holds."""
    if (folder / HEADER).is_file():
        return [folder]
    inside = folder / ALIGNMENTS if (folder / ALIGNMENTS).is_dir() else folder
    return sorted(path.parent for path in inside.glob(f"*/*/{HEADER}"))


def _given(folder: Path) -> GivenAlignment:
    header = read_header(folder)
    about = (header["task"], header["variable"], header["causal_model"])
    name = _one_line(header["method"] or folder.name)
    return GivenAlignment(folder, *about, name, model=str(header["model"]))


def _is_of_mib(folder: Path) -> bool:
    """Whether a folder is one of the track's, by its name."""
    try:
        MIB_BOARD.parsed(folder.name)
    except BadUsage:
        return False
    return folder.is_dir()


def _one_line(name: str) -> str:
    """A name that others chose, as tables can show it."""
    plain = "".join(letter if letter.isprintable() else " " for letter in name)
    return " ".join(plain.split())[:LONGEST]


@checked
def validate(
    folder: str | Path, *, model: Model | None = None, ignore_code: bool = False
) -> Problems:
    """What is wrong with a folder, warnings too: alignments of ours if it has an alignment.json or
    is a run, else a submission to MIB's causal track. Nothing in it is executed.

    Args:
        model: what the folder has to be about; of a submission, its folders of that class.
        ignore_code: code in a submission is a warning, and no error.

    Raises:
        UnknownName: MIB's board has no model of the given one's class.
    """
    folder = Path(folder)
    own = alignment_folders(folder)
    if not own:
        return mib_problems(folder, model=model, ignore_code=ignore_code)
    every = Problems()
    for alignment in own:
        problems = Problems()
        read = read_alignment(alignment, problems)
        if read is not None and model is not None:
            try:
                read.on(model)
            except MechassayError as error:
                problems.note(HEADER, str(error))
        for problem in problems:
            path = str((alignment / problem.path).relative_to(folder))
            every.note(path, problem.message, warning=problem.warning)
    return every
