"""All mistakes of a folder about causal variables at once, whichever of the two kinds it is."""

from __future__ import annotations

from pathlib import Path

from mechassay.errors import MechassayError
from mechassay.models.model import Model
from mechassay.submissions import Problems
from mechassay.variables.mib_folder import mib_problems
from mechassay.variables.variable_alignment import HEADER, read_alignment


def validate(
    folder: str | Path, *, model: Model | None = None, ignore_code: bool = False
) -> Problems:
    """What is wrong with a folder, warnings too: an alignment of ours if it has an alignment.json,
    else a submission to MIB's causal track. Nothing in it is executed.

    Args:
        model: what the folder has to be about; of a submission, its folders of that class.
        ignore_code: code in a submission is a warning, and no error.

    Raises:
        UnknownName: MIB's board has no model of the given one's class.
    """
    folder = Path(folder)
    if not (folder / HEADER).is_file():
        return mib_problems(folder, model=model, ignore_code=ignore_code)
    found = Problems()
    read = read_alignment(folder, found)
    if read is not None and model is not None:
        try:
            read.on(model)
        except MechassayError as error:
            found.note(HEADER, str(error))
    return found
