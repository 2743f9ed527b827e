"""Names and files of MIB's causal track (Mueller et al. 2025, section 4), and how they are ours.

    folder      TASK_MODELCLASS_VARIABLE, such as arithmetic_Gemma2ForCausalLM_ones_carry
    unit        ResidualStream(Layer-3,Token-last_token) or
                AttentionHead(Layer-7,Head-3,Token-all)

A class names one model: Qwen2ForCausalLM is Qwen2.5 0.5B. Names are those of the public code
(verify_submission.py). A position is a token of a part of the prompt, its last one, as a column
of ours of that part is. The code takes the first capital letter that equals the right symbol,
which can stand in the question; ours is that of the choices.

A unit has three files, which are read and written as data:

    UNIT_featurizer, UNIT_inverse_featurizer    PyTorch archives, see `read_featurizer`
    UNIT_indices                                JSON: a list of features, or null for all
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.errors import BadFile, BadUsage, UnknownName, one_of
from mechassay.features.featurizer import (
    Directions,
    Featurizer,
    Identity,
    Mask,
    PrincipalAxes,
    is_orthonormal,
)
from mechassay.interventions.names import Part
from mechassay.interventions.site import ALL, LAST, ModelShape, Site, load_site
from mechassay.models.graph import Graph
from mechassay.models.weight_files import checked_tensor, load_archive
from mechassay.utils.files import read_small_json, write_bytes, write_text

_TOKEN = re.compile(r"Token[-:_](?P<token>[\w.-]+)\)$")


@dataclass(frozen=True)
class BoardTask:
    """A task of the track.

    Attributes:
        name: of our task.
        variables: our names by MIB's.
        positions: our columns by MIB's positions.
        models: classes of the models that it is evaluated on.
        part: where its units are.
    """

    name: str
    variables: Mapping[str, str]
    positions: Mapping[str, str]
    models: tuple[str, ...]
    part: Part = "resid"


@dataclass(frozen=True)
class BoardModel:
    """A model of the track: its id on the hub, and its sizes."""

    name: str
    shape: ModelShape


@dataclass(frozen=True)
class MIBBoard:
    """What a folder may hold: tasks by MIB's names, models by their classes."""

    tasks: Mapping[str, BoardTask]
    models: Mapping[str, BoardModel]

    def parsed(self, folder: str) -> tuple[str, str, str]:
        """Task, class of the model and variable of a folder's name, as MIB calls them.

        Raises:
            BadUsage: the track has no such task, model or variable, or not together.
        """
        task = next((name for name in self.tasks if folder.startswith(f"{name}_")), None)
        if task is None:
            raise UnknownName("task at the beginning of a folder's name", folder, self.tasks)
        kind, _, variable = folder.removeprefix(f"{task}_").partition("_")
        one_of("class of a model of MIB's causal track", kind, self.models)
        one_of(f"variable of {task}", variable, self.tasks[task].variables)
        self._check_evaluated(task, kind)
        return task, kind, variable

    def named(self, task: str, variable: str, model: str, shape: ModelShape | None) -> str:
        """The folder's name of our task and variable; a model is told by its id or its shape.

        Raises:
            BadUsage: the track has no such task, model or variable, or not together.
        """
        theirs = {known.name: name for name, known in self.tasks.items()}
        name = theirs[one_of("task of MIB's causal track", task, theirs)]
        variables = {ours: other for other, ours in self.tasks[name].variables.items()}
        one_of(f"variable of {task} in MIB's causal track", variable, variables)
        kinds = {kind: kind for kind in self.models}
        kinds |= {known.name: kind for kind, known in self.models.items()}
        same = [kind for kind, known in self.models.items() if known.shape == shape]
        if model not in kinds and len(same) == 1:
            kinds[model] = same[0]
        ids = [known.name for known in self.models.values()]
        if model not in kinds:
            raise UnknownName("model of MIB's causal track", model, ids)
        self._check_evaluated(name, kinds[model])
        return f"{name}_{kinds[model]}_{variables[variable]}"

    def _check_evaluated(self, task: str, kind: str) -> None:
        known = self.tasks[task].models
        if kind not in known:
            raise BadUsage(
                f"MIB's causal track does not evaluate {kind} on {task}; it does"
                f" {', '.join(known)}."
            )

    def site(self, task: str, unit: str) -> Site:
        """The site of a unit's name, its position a column of ours.

        Raises:
            BadUsage: no name of a unit, of another part than the task's, or a position that needs
                code.
        """
        site, about = load_site(unit), self.tasks[task]
        if site.part != about.part:
            raise BadUsage(f"units of {task} are of part {about.part!r}; got {site.part!r}.")
        if site.part == "heads" and not site.heads:
            raise BadUsage("a unit of attention names one head; got none.")
        match = _TOKEN.search(unit)
        token = "" if match is None else match["token"]
        if token not in about.positions:
            raise BadUsage(
                f"Position {token!r} is none of {task}, which are"
                f" {', '.join(about.positions)}; others need token_position.py, which is not run."
            )
        return site.at(about.positions[token])

    def unit(self, task: str, site: Site) -> str:
        """The unit's name of a site.

        Raises:
            BadUsage: MIB has no such position in the task, or no such unit.
        """
        about = self.tasks[task]
        tokens = {ours: theirs for theirs, ours in about.positions.items()}
        if site.part != about.part or site.position not in tokens:
            raise BadUsage(
                f"MIB's {task} has sites of part {about.part!r} at {', '.join(tokens)}; got {site}."
            )
        return site.mib(tokens[str(site.position)])


def _same(*names: str) -> Mapping[str, str]:
    return MappingProxyType({name: name for name in names})


_GPT2, _QWEN, _GEMMA, _LLAMA = (
    "GPT2LMHeadModel",
    "Qwen2ForCausalLM",
    "Gemma2ForCausalLM",
    "LlamaForCausalLM",
)
_CHOICES = {"correct_symbol": "correct_symbol", "last_token": LAST}
_PERIOD = {"correct_symbol_period": "correct_symbol_period"}
MIB_BOARD = MIBBoard(
    MappingProxyType(
        {
            "ioi_task": BoardTask(
                "ioi",
                {"output_token": "subject_token", "output_position": "subject_position"},
                {"all": ALL},
                (_GPT2, _QWEN, _GEMMA, _LLAMA),
                "heads",
            ),
            "4_answer_MCQA": BoardTask(
                "mcqa",
                _same("answer_pointer", "answer"),
                _CHOICES | _PERIOD,
                (_QWEN, _GEMMA, _LLAMA),
            ),
            "ARC_easy": BoardTask(
                "arc-easy", _same("answer_pointer", "answer"), _CHOICES, (_GEMMA, _LLAMA)
            ),
            "arithmetic": BoardTask(
                "arithmetic-addition",
                {"ones_carry": "carry"},
                {"op2_last": "op2", "last": LAST},
                (_GEMMA, _LLAMA),
            ),
            "ravel_task": BoardTask(
                "ravel",
                _same("Country", "Continent", "Language"),
                {"entity_last_token": "entity", "last_token": LAST},
                (_GEMMA, _LLAMA),
            ),
        }
    ),
    MappingProxyType(
        {
            _GPT2: BoardModel("gpt2", ModelShape(Graph(12, 12), 768, 64)),
            _QWEN: BoardModel("Qwen/Qwen2.5-0.5B", ModelShape(Graph(24, 14), 896, 64)),
            _GEMMA: BoardModel("google/gemma-2-2b", ModelShape(Graph(26, 8), 2304, 256)),
            _LLAMA: BoardModel(
                "meta-llama/Meta-Llama-3.1-8B-Instruct", ModelShape(Graph(32, 32), 4096, 128)
            ),
        }
    ),
)
"""The track as published: 26 folders."""


FEATURIZER, INVERSE, INDICES = "featurizer", "inverse_featurizer", "indices"
ROLES = (FEATURIZER, INVERSE, INDICES)
SUBSPACE, IDENTITY = "SubspaceFeaturizerModule", "IdentityFeaturizerModule"
CLASSES: Mapping[str, Mapping[str, str]] = {
    FEATURIZER: {SUBSPACE: SUBSPACE, IDENTITY: IDENTITY},
    INVERSE: {
        "SubspaceInverseFeaturizerModule": SUBSPACE,
        "IdentityInverseFeaturizerModule": IDENTITY,
    },
}
"""Classes of a file by its role, and the featurizer that each is of."""
TOLERANCE = 1e-3
"""How far numbers of one rotation may be apart between its files."""
LARGEST_ARCHIVE = 2**31
"""Bytes of a file from which on it is not opened; one of Llama's largest has 130 MB."""
_ROTATE = "rotate.parametrizations.weight"
_ORIGINAL, _BASE = f"{_ROTATE}.original", f"{_ROTATE}.0.base"


# Reading


def file_of(folder: Path, unit: str, role: str) -> Path:
    """The file of a unit."""
    return folder / f"{unit}_{role}"


def read_featurizer(folder: Path, unit: str, width: int) -> Featurizer:
    """The featurizer of a unit whose values have `width` numbers.

    The files of featurizer and inverse are PyTorch archives of

        {"model_info": {featurizer_class, inverse_featurizer_class, n_features,
                        additional_config: {rotation_matrix, requires_grad}},
         "state_dict": ...}

    A class is a name, and no code: SubspaceFeaturizerModule is f = h W with a rotation W [d,
    k], such as DAS's or PCA's axes, and h - f W' stays (`features.Directions`);
    IdentityFeaturizerModule is h. Any other class is user code, which is not run. SAEs are
    never saved.

    MIB's loader sets the rotation to rotation_matrix and then overwrites it with the state
    dict, which has torch's orthogonal parametrization of it: with X =
    parametrizations.weight.original [d, k] and B = parametrizations.weight.0.base [d, d],

        W = B H(X) diag(X)   H: Householder reflections along the strict lower columns of X
        W = B exp(tril(X) - tril(X)')                                              where k = d

    So a file is refused where the two are not one rotation, and a unit whose inverse has
    another (`check_inverse`).

    Raises:
        BadFile: missing, truncated, unsafe or foreign, of another width, or a rotation that is
            none.
    """
    path = file_of(folder, unit, FEATURIZER)
    kind, data = _module(path, FEATURIZER)
    info = data["model_info"]
    n_features = info.get("n_features")
    if n_features is not None and type(n_features) is not int:
        raise BadFile(f"{path}: n_features is a {type(n_features).__name__}; expected a number.")
    if kind == IDENTITY:
        if n_features not in (None, width):
            raise BadFile(f"{path}: an identity of {n_features} numbers; values have {width}.")
        return Identity(width)
    rotation = _rotation(path, info, width)
    if n_features is not None and n_features != rotation.shape[1]:
        raise BadFile(
            f"{path}: n_features is {n_features}, and rotation_matrix has {rotation.shape[1]}"
            " columns."
        )
    if not is_orthonormal(rotation):
        raise BadFile(f"{path}: the columns of rotation_matrix are not orthonormal.")
    apart = _apart(rotation, _parametrized(path, data["state_dict"], rotation))
    if not apart < TOLERANCE:
        raise BadFile(
            f"{path}: rotation_matrix and state_dict are two rotations, {apart:.2g} apart; MIB's"
            " loader takes the second."
        )
    return Directions(rotation)


def check_inverse(folder: Path, unit: str, featurizer: Featurizer | None) -> None:
    """Refuse a unit whose inverse featurizer does not undo its featurizer.

    Args:
        featurizer: what was read; None where that failed, and only the file itself is checked.

    Raises:
        BadFile: it does not; missing, truncated, unsafe or foreign.
    """
    path = file_of(folder, unit, INVERSE)
    kind, data = _module(path, INVERSE)
    if featurizer is None:
        return
    ours = SUBSPACE if isinstance(featurizer, Directions) else IDENTITY
    if kind != ours:
        raise BadFile(f"{path}: undoes {kind}; the featurizer is {ours}.")
    if isinstance(featurizer, Directions):
        rotation = featurizer.vectors
        apart = _apart(rotation, _parametrized(path, data["state_dict"], rotation))
        if not apart < TOLERANCE:
            raise BadFile(
                f"{path}: does not invert the featurizer: their rotations are {apart:.2g} apart."
            )


def read_indices(folder: Path, unit: str, n_features: int | None) -> Mask | None:
    """Which features are exchanged; None: all of them. An empty list is none of them.

    Raises:
        BadFile: missing, no list of whole numbers or null, one twice, or one that is not there.
    """
    path = file_of(folder, unit, INDICES)
    indices = read_small_json(path)
    if indices is None:
        return None
    if not isinstance(indices, list) or any(type(index) is not int for index in indices):
        raise BadFile(f"{path}: must be a list of whole numbers, or null for all features.")
    if n_features is None:
        return None
    wrong = [index for index in indices if not 0 <= index < n_features]
    if wrong:
        raise BadFile(f"{path}: features are 0 to {n_features - 1}; got {str(wrong[0])[:40]}.")
    if len(set(indices)) < len(indices):
        raise BadFile(f"{path}: names a feature twice.")
    mask = torch.zeros(n_features, dtype=torch.bool)
    mask[indices] = True
    return mask


def _module(path: Path, role: str) -> tuple[str, dict[str, Any]]:
    """Which featurizer a file is of, and its content."""
    if not path.is_file():
        raise BadFile(f"{path}: there is no such file.")
    if path.stat().st_size > LARGEST_ARCHIVE:
        raise BadFile(f"{path}: has more than {LARGEST_ARCHIVE // 2**30} GiB; it was not opened.")
    data = load_archive(path)
    if not isinstance(data, dict) or not all(
        isinstance(data.get(key), Mapping) for key in ("model_info", "state_dict")
    ):
        raise BadFile(f"{path}: no featurizer: it needs model_info and state_dict.")
    key = f"{role}_class"
    name = str(data["model_info"].get(key))[:80]
    if name.startswith("SAE"):
        raise BadFile(f"{path}: {key} is {name}; MIB's folders hold no SAEs.")
    if name not in CLASSES[role]:
        raise BadFile(
            f"{path}: {key} is {name}, which is code that is not run; read are"
            f" {', '.join(CLASSES[role])}."
        )
    return CLASSES[role][name], data


def _rotation(path: Path, info: Mapping[str, Any], width: int) -> Float[Tensor, "d k"]:
    config = info.get("additional_config")
    given = config.get("rotation_matrix") if isinstance(config, Mapping) else None
    if not isinstance(given, Tensor):
        raise BadFile(f"{path}: additional_config has no rotation_matrix.")
    k = given.shape[1] if given.ndim == 2 else 0
    if given.ndim != 2 or given.shape[0] != width or not 1 <= k <= width:
        raise BadFile(
            f"{path}: rotation_matrix has shape {tuple(given.shape)}; values of this site have"
            f" {width} numbers."
        )
    return checked_tensor(path, "rotation_matrix", given, (width, k), floating=True)


def _parametrized(
    path: Path, state: Mapping[str, Any], rotation: Float[Tensor, "d k"]
) -> Float[Tensor, "d k"]:
    """The rotation that a state dict makes, in fp64."""
    d, k = rotation.shape
    if set(state) == {"rotate.weight"}:
        plain = checked_tensor(path, "rotate.weight", state["rotate.weight"], (d, k), floating=True)
        return plain.double()
    if set(state) != {_ORIGINAL, _BASE}:
        raise BadFile(
            f"{path}: state_dict has {str(sorted(map(str, state)))[:120]}; expected {_ORIGINAL} and"
            f" {_BASE}."
        )
    x = checked_tensor(path, _ORIGINAL, state[_ORIGINAL], (d, k), floating=True).double()
    base = checked_tensor(path, _BASE, state[_BASE], (d, d), floating=True).double()
    if k == d:
        lower = x.tril()
        return base @ torch.matrix_exp(lower - lower.mT)
    below = x.tril(-1)
    reflections = torch.linalg.householder_product(below, 2 / (1 + below.square().sum(dim=0)))
    return base @ (reflections * x.diagonal().trunc())


def _apart(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max())


# Writing


def write_unit(folder: Path, unit: str, featurizer: Featurizer, chosen: Mask | None) -> list[Path]:
    """Write a unit; MIB's own loader reads it, and gets the same rotation to the last bit.

    Raises:
        BadUsage: features that MIB's files cannot hold, such as an SAE's.
    """
    rotation = rotation_of(unit, featurizer)
    kind, config, state = IDENTITY, dict[str, Any](), dict[str, Tensor]()
    n_features = getattr(featurizer, "width", None)
    if rotation is not None:
        rotation = rotation.detach().cpu().clone().contiguous()
        kind, n_features = SUBSPACE, rotation.shape[1]
        config = {"rotation_matrix": rotation, "requires_grad": False}
        # A basis that begins with the rotation's own columns, bit for bit.
        completed, _ = torch.linalg.qr(rotation.double(), mode="complete")
        rest = completed[:, n_features:].to(rotation.dtype)
        base = torch.cat([rotation, rest], dim=1).contiguous()
        state = {_ORIGINAL: torch.zeros_like(rotation), _BASE: base}
        state[_ORIGINAL].fill_diagonal_(-1)
    classes = {
        f"{role}_class": next(name for name, of in CLASSES[role].items() if of == kind)
        for role in CLASSES
    }
    info = {**classes, "n_features": n_features, "additional_config": config}
    # null where all features are meant, as MIB writes it.
    indices = None if chosen is None else chosen.nonzero().flatten().tolist()
    written: list[Path] = []
    for role in (FEATURIZER, INVERSE):
        archive = io.BytesIO()
        torch.save({"model_info": info, "state_dict": state}, archive)
        written.append(write_bytes(file_of(folder, unit, role), archive.getvalue()))
    return [*written, write_text(file_of(folder, unit, INDICES), json.dumps(indices))]


def rotation_of(unit: str, featurizer: Featurizer) -> Float[Tensor, "d k"] | None:
    """The rotation that a file can hold; None for an identity.

    Raises:
        BadUsage: MIB's files cannot hold the featurizer.
    """
    if isinstance(featurizer, Identity):
        return None
    if isinstance(featurizer, Directions):
        return featurizer.vectors
    if isinstance(featurizer, PrincipalAxes):
        # Mean and scale change nothing of an exchange.
        return featurizer.axes
    raise BadUsage(
        f"{unit}: MIB's files hold rotations and identities, no {type(featurizer).__name__}; save"
        " the alignment itself."
    )
