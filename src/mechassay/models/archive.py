"""PyTorch archives (.pt, .pth) read as data.

Such a file is a pickle, which can run code. Only archives of stored (not compressed) records are
opened, with weights_only, which builds tensors, containers, numbers and text and calls nothing
else; PyTorch's older formats are refused, because some versions unpickle them without that limit.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechassay.errors import BadFile, first_line

_CODE = re.compile(r"GLOBAL ([\w.<>]+)")


def load_archive(path: Path) -> Any:
    """What a PyTorch archive holds, if that is tensors, containers, numbers and text.

    Raises:
        BadFile: anything else; nothing was executed.
    """
    try:
        with path.open("rb") as file:
            is_archive = file.read(4) == b"PK\x03\x04"
    except OSError as error:
        raise BadFile(f"{path}: not a readable PyTorch archive ({first_line(error)}).") from None
    if not is_archive:
        raise BadFile(
            f"{path}: refused: not a PyTorch archive (PyTorch 1.6 and later) but a bare pickle or"
            " other data; nothing was run."
        )
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
    except Exception as error:  # Not only BadZipFile: names that are no text, unknown versions.
        raise BadFile(f"{path}: not a readable PyTorch archive ({first_line(error)}).") from None
    if any(record.compress_type != zipfile.ZIP_STORED for record in records):
        raise BadFile(
            f"{path}: refused: a zip file with compressed records, which PyTorch does not write;"
            " nothing was run."
        )
    if any(record.filename.endswith("constants.pkl") for record in records):
        raise BadFile(
            f"{path}: refused: a TorchScript program, not a dictionary of tensors; nothing was run."
        )
    try:
        return torch.load(path, map_location="cpu", weights_only=True)  # noqa: TID251 - see above
    except Exception as error:  # Which exceptions foreign bytes raise is not documented.
        code = _CODE.search(str(error))
        if code is not None:
            raise BadFile(
                f"{path}: refused: its pickle calls {code[1]}, so it is not plain data; nothing was"
                " run."
            ) from None
        # PyTorch's own message begins with advice to switch the protection off.
        reason = str(error).rpartition("WeightsUnpickler error: ")[2].strip()
        reason = (
            "its pickle is damaged"
            if not reason or reason.startswith("Weights only")
            else reason.splitlines()[0][:160]
        )
        raise BadFile(f"{path}: not a readable PyTorch archive of plain data ({reason}).") from None


def checked_tensor(
    path: Path, name: str, given: Any, shape: tuple[int, ...], *, floating: bool
) -> Tensor:
    """The tensor, if it is one of this shape, of floats or booleans, that is stored in full.

    Raises:
        BadFile: it is not.
    """
    if not isinstance(given, Tensor) or given.layout != torch.strided or given.device.type != "cpu":
        raise BadFile(f"{path}: {name} is not an ordinary tensor.")
    if tuple(given.shape) != shape:
        raise BadFile(f"{path}: {name} has shape {tuple(given.shape)}; expected {shape}.")
    if given.is_floating_point() != floating or (not floating and given.dtype != torch.bool):
        kind, held = "floating-point" if floating else "boolean", str(given.dtype)
        raise BadFile(
            f"{path}: {name} holds {held.removeprefix('torch.')}; expected {kind} values."
        )
    if given.untyped_storage().nbytes() < given.numel() * given.element_size():
        raise BadFile(f"{path}: {name} claims more values than the file holds.")
    return given.detach().contiguous()
