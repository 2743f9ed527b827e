"""PyTorch archives of others: data is read, anything else is refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mechassay.errors import BadFile
from mechassay.models.weight_files import load_archive


def test_tensors_and_plain_values_are_read(tmp_path: Path) -> None:
    torch.save({"a": torch.arange(3), "b": [1, "x", None]}, tmp_path / "it")
    found = load_archive(tmp_path / "it")
    assert found["a"].tolist() == [0, 1, 2] and found["b"] == [1, "x", None]


@pytest.mark.parametrize(
    ("of", "to"),
    [(b"data.pkl", b"\x80ata.pkl"), (b"PK\x01\x02", b"PK\x01\x03"), (b"PK\x05\x06", b"PK\x05\x07")],
)
def test_a_damaged_directory_of_records_is_one_line(tmp_path: Path, of: bytes, to: bytes) -> None:
    torch.save({"a": torch.arange(3)}, tmp_path / "it")
    content = (tmp_path / "it").read_bytes()
    at = content.rindex(of)
    (tmp_path / "it").write_bytes(content[:at] + to + content[at + len(of) :])
    with pytest.raises(BadFile, match="not a readable PyTorch archive") as error:
        load_archive(tmp_path / "it")
    assert "\n" not in str(error.value)


def test_what_is_no_archive_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pickle").write_bytes(b"\x80\x02}q\x00.")
    with pytest.raises(BadFile, match="a bare pickle or other data; nothing was run"):
        load_archive(tmp_path / "pickle")
    with pytest.raises(BadFile, match="No such file"):
        load_archive(tmp_path / "none")
