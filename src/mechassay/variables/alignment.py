"""A causal variable, and the features of a language model that are said to carry it.

    alignment/
        alignment.json          what is aligned with what: {"kind": "alignment", "format": 1, task,
                                variable, causal_model, method, model, shape, sites, provenance}
        fit.safetensors         the features (`Fit.save`)
        logit_difference.json   the coefficients of the causal model, where it is the linear one

A folder is data: JSON and safetensors, nothing in it is executed. `shape` has the model's layers,
heads and widths and its graph's fingerprint; so a site of another model is found without a model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mechassay.causal_models.ioi import LogitDifference
from mechassay.causal_models.task_models import CAUSAL_MODELS, load_causal_model
from mechassay.errors import BadFile, BadUsage, GraphMismatch, one_of
from mechassay.features.featurizer import Identity, decoder_of
from mechassay.features.finder import Fit
from mechassay.interventions.site import ModelShape, Site
from mechassay.models.model import Model
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine, html_facts
from mechassay.utils.files import (
    BESIDE,
    CODE,
    FORMAT,
    LEADS_OUT,
    Problems,
    leads_out,
    no_folder,
    read_json,
    write_text,
)

KIND = "alignment"
ALIGNMENTS = "alignments"
"""Folder of a run that holds what it found, a folder a cell."""
HEADER, FIT, COEFFICIENTS = "alignment.json", "fit.safetensors", "logit_difference.json"
NAMES = ("task", "variable", "causal_model", "model", "method")


@dataclass(frozen=True, eq=False, repr=False)
class VariableAlignment(OneLine):
    """What is said to carry a causal variable, and where.

    Attributes:
        task: whose prompts.
        variable: of the causal model.
        model: the language model's name, id or folder.
        fit: sites, their features, and which of these are meant.
        causal_model: its name; the task's own if not given.
        shape: of the language model; None where it is not known.
        method: a name for how the features were found, such as "das".
        coefficients: of the linear causal model, where it is that.

    Raises:
        BadUsage: a name that is missing, or a site that a model of this shape does not have.
    """

    task: str
    variable: str
    model: str
    fit: Fit
    causal_model: str = ""
    shape: ModelShape | None = None
    method: str = ""
    coefficients: LogitDifference | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "causal_model", self.causal_model or self.task)
        lacking = [name for name in ("task", "variable", "model") if not getattr(self, name)]
        if lacking:
            raise BadUsage(f"An alignment needs {', '.join(lacking)}.")
        for fault in site_faults(self.fit, self.shape, self.model):
            raise BadUsage(fault)

    @staticmethod
    @checked
    def of(
        fit: Fit,
        task: str,
        variable: str,
        *,
        causal_model: str = "",
        method: str = "",
        coefficients: LogitDifference | None = None,
    ) -> VariableAlignment:
        """That of a fit which knows the model that it was found on.

        Raises:
            BadUsage: it does not know it.
        """
        if fit.model is None:
            raise BadUsage("A fit that was read from a file does not know its model: name it.")
        return VariableAlignment(
            *(task, variable, fit.model.name, fit, causal_model),
            ModelShape.of(fit.model),
            method or str(fit.provenance.get("finder", "")),
            coefficients,
        )

    @checked
    def on(self, model: Model) -> VariableAlignment:
        """The same for a loaded model, so that its fit can be measured.

        Raises:
            GraphMismatch: the model has another shape.
            BadUsage: it has no such site.
        """
        shape = ModelShape.of(model)
        if self.shape not in (None, shape):
            raise GraphMismatch(
                f"The alignment is about {self.model} ({self.shape}); {model.name} has {shape}."
            )
        return replace(self, model=model.name, shape=shape, fit=replace(self.fit, model=model))

    def repr_fields(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in NAMES}, "sites": len(self.fit)}

    def _repr_html_(self) -> str:
        facts = {**{name: getattr(self, name) for name in NAMES}, "shape": self.shape or "unknown"}
        fit: Any = self.fit
        return html_facts(f"Alignment of {self.variable}", facts, fit._repr_html_())

    # --- files ------------------------------------------------------------------------------------

    @checked
    def save(self, folder: str | Path) -> Path:
        """Write the folder.

        Raises:
            BadUsage: there is something else in it, or features that files cannot hold.
        """
        folder = Path(folder)
        if (
            folder.exists()
            and not (folder / HEADER).is_file()
            and (not folder.is_dir() or any(folder.iterdir()))
        ):
            raise BadUsage(f"{folder}: there is something else already.")
        self.fit.save(folder / FIT)
        if self.coefficients is not None:
            self.coefficients.save(folder / COEFFICIENTS)
        else:
            (folder / COEFFICIENTS).unlink(missing_ok=True)
        header = {
            "kind": KIND,
            "format": FORMAT,
            **{name: getattr(self, name) for name in NAMES},
            "shape": None if self.shape is None else self.shape.as_dict(),
            "sites": [str(site) for site in self.fit.sites],
            "provenance": dict(self.fit.provenance),
        }
        text = json.dumps(header, indent=1, sort_keys=True, ensure_ascii=False)
        write_text(folder / HEADER, text + "\n")
        return folder

    @staticmethod
    @checked
    def load(folder: str | Path, model: Model | None = None) -> VariableAlignment:
        """Read a folder written by `save`; nothing in it is executed.

        Args:
            model: what it has to be about.

        Raises:
            BadFile: missing, truncated, foreign, or what does not fit together.
            GraphMismatch, BadUsage: about another model.
        """
        problems = Problems()
        read = read_alignment(Path(folder), problems)
        problems.refuse(Path(folder))
        if read is None:  # Not reached: what has no problem was read.
            raise BadFile(f"{folder}: holds no alignment.")
        return read if model is None else read.on(model)


def width_of(fit: Fit, site: Site) -> int | None:
    """How many numbers a value has that the features of a site are of; None: any."""
    featurizer, mask = fit.featurizers[site], fit.chosen.get(site)
    if isinstance(featurizer, Identity):
        return featurizer.width if mask is None else len(mask)
    decoder = decoder_of(featurizer)
    return None if decoder is None else decoder.shape[1]


def site_faults(fit: Fit, shape: ModelShape | None, model: str) -> Iterator[str]:
    """Which sites a model of this shape does not have, or not of that width.

    Args:
        model: what messages call it.
    """
    if shape is None:
        return
    for site in fit.sites:
        try:
            site.check_graph(shape.graph, model)
        except BadUsage as error:
            yield str(error)
            continue
        width, needed = width_of(fit, site), shape.width(site)
        if width not in (None, needed):
            yield f"Site {site}: {model} has {needed} numbers there; the features are of {width}."


# Reading


def read_alignment(folder: Path, problems: Problems) -> VariableAlignment | None:
    """What a folder holds; what is wrong with it is added to `found`. None if it cannot be read."""
    if not folder.is_dir():
        problems.note(".", f"{no_folder(folder)}: {folder}.")
        return None
    paths = dict(_files(folder, problems))
    header = fit = coefficients = shape = None
    if HEADER in paths:
        header = problems.tried(HEADER, partial(_header, paths[HEADER]), paths[HEADER])
    if FIT in paths:
        fit = problems.tried(FIT, partial(Fit.load, paths[FIT]), paths[FIT])
    if COEFFICIENTS in paths:
        at = paths[COEFFICIENTS]
        coefficients = problems.tried(COEFFICIENTS, partial(LogitDifference.load, at), at)
    if header is None:
        return None
    if header["shape"] is not None:
        shape = problems.tried(HEADER, partial(ModelShape.from_dict, header["shape"]))
    names = {name: header[name] for name in NAMES}
    _check_variable(names, problems)
    if fit is None:
        return None
    if header["sites"] != [str(site) for site in fit.sites]:
        problems.note(HEADER, f"its sites are not those of {FIT}.")
    faults = list(site_faults(fit, shape, names["model"]))
    for fault in faults:
        problems.note(FIT, fault)
    if faults:
        return None
    return VariableAlignment(**names, fit=fit, shape=shape, coefficients=coefficients)


def read_header(folder: Path) -> dict[str, Any]:
    """What an alignment is about: its names, sites and shape; no features are read.

    Raises:
        BadFile: missing, a link that leads out, or no header of an alignment.
    """
    if leads_out(folder / HEADER, folder):
        raise BadFile(f"{folder / HEADER}: is {LEADS_OUT}")
    return _header(folder / HEADER)


def _files(folder: Path, problems: Problems) -> Iterator[tuple[str, Path]]:
    """The files of an alignment that may be opened."""
    there = {path.name: path for path in sorted(folder.iterdir())}
    for name, path in there.items():
        if leads_out(path, folder):
            problems.note(name, LEADS_OUT)
        elif path.suffix == ".py":
            problems.note(name, CODE)
        elif name in (HEADER, FIT, COEFFICIENTS) and path.is_file():
            yield name, path
        elif name not in BESIDE:
            problems.note(name, "is no file of an alignment and is not read.", warning=True)
    for name in (HEADER, FIT):
        if name not in there:
            problems.note(name, "there is no such file.")


def _header(path: Path) -> dict[str, Any]:
    header = read_json(path)
    if header.get("kind") != KIND or header.get("format") != FORMAT:
        raise BadFile(
            f"{path}: kind {str(header.get('kind'))[:40]!r},"
            f" format {str(header.get('format'))[:40]};"
            f" this version reads kind {KIND!r}, format {FORMAT}."
        )
    wrong = [name for name in NAMES if not isinstance(header.get(name), str)]
    wrong += [name for name in NAMES if header.get(name) == "" and name != "method"]
    if wrong:
        raise BadFile(f"{path}: needs {', '.join(wrong)} as text.")
    if not isinstance(header.get("sites"), list):
        raise BadFile(f"{path}: needs sites as a list.")
    if not isinstance(header.get("shape", 0), Mapping | None):
        raise BadFile(f"{path}: needs shape as an object, or null.")
    return header


def _check_variable(names: Mapping[str, str], problems: Problems) -> None:
    """Whether the causal model has the variable; one of another package is not known here."""
    known = names["causal_model"]
    if known not in CAUSAL_MODELS:
        problems.note(HEADER, f"causal model {known!r} is not known here.", warning=True)
        return
    variables = load_causal_model(known).variables
    kind = f"variable of the causal model {known}"
    problems.tried(HEADER, partial(one_of, kind, names["variable"], list(variables)))
