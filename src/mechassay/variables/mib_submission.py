"""Alignments written as a submission to MIB's causal track; `mib_folder` reads it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from mechassay.errors import BadUsage, GraphMismatch
from mechassay.files import write_text
from mechassay.interventions.site import Site
from mechassay.variables.mib_board import MIB_BOARD, BoardModel, MIBBoard
from mechassay.variables.mib_coefficients import LINEAR, PARAMETERS, SHORT, plain_coefficients
from mechassay.variables.mib_unit import rotation_of, write_unit
from mechassay.variables.variable_alignment import VariableAlignment, site_faults


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
    for each in alignments:
        name = board.named(each.task, each.variable, each.model, each.shape)
        task, kind, _ = board.parsed(name)
        inside = folder / name / _plain(each.method)
        if inside in plan:
            raise BadUsage(f"Two alignments belong into {inside.relative_to(folder)}.")
        plan[inside] = each, _checked_units(each, task, board.models[kind], board)
        if task == LINEAR:
            told = plain_coefficients(each)
            if parameters.setdefault(SHORT.get(kind, kind), told) != told:
                raise BadUsage(f"One model has one set of coefficients; {each.model} has two.")
    if not plan:
        raise BadUsage("A submission needs an alignment; got none.")
    mixed = [inside for inside in plan if inside.parent in plan]
    if mixed:
        raise BadUsage(
            f"{mixed[0].parent.name}: name the methods of all its alignments, or of none."
        )
    written: list[Path] = []
    for inside, (each, units) in plan.items():
        for site, unit in units.items():
            features = each.fit.features(site)
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
