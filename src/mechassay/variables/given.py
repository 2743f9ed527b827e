"""Alignments that stand in folders, by their names: features are read when they are measured.

A folder is one alignment (alignment.json), a submission to MIB's causal track, which holds many, or
one of the folders TASK_MODELCLASS_VARIABLE in it.
What an alignment is about is told by its header, or by the names of its folders; so a plan can list
large files without opening them. All of it is data, nothing is executed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mechassay.errors import BadFile, BadUsage
from mechassay.files import folder_hash
from mechassay.models.model import Model
from mechassay.variables.hypothesis import Hypothesis, hypotheses
from mechassay.variables.mib_board import MIB_BOARD
from mechassay.variables.mib_folder import class_of, mib_parts, read_mib_folder
from mechassay.variables.variable_alignment import HEADER, VariableAlignment, read_header

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
    """

    folder: Path
    task: str
    variable: str
    causal_model: str
    name: str
    inside: str = ""
    model_class: str = ""

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
        found = known.get(self.variable)
        if found is None or self.causal_model not in (found.model.name, self.task):
            names = ", ".join(f"{name} of {each.model.name}" for name, each in known.items())
            raise BadUsage(
                f"{self.typed}: {self.variable!r} of the causal model {self.causal_model!r} is"
                f" none of {self.task}'s variables: {names}."
            )
        return found

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
    if (folder / HEADER).is_file():
        told = read_header(folder)
        about = (told["task"], told["variable"], told["causal_model"])
        return [GivenAlignment(folder, *about, _one_line(told["method"] or folder.name))]
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
