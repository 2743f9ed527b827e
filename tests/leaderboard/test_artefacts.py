"""Files that a static board keeps, by the hash of what they hold."""

from __future__ import annotations

import gzip
from hashlib import sha256
from pathlib import Path

import pytest

from mechassay.errors import BadFile
from mechassay.leaderboard import artefacts
from mechassay.leaderboard.artefacts import (
    artefact_file,
    keep_artefact,
    unpack_artefact,
)

CONTENT = b"scores " * 1000


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """A board with one artefact."""
    (tmp_path / "found.bin").write_bytes(CONTENT)
    keep_artefact(tmp_path / "found.bin", tmp_path / "board")
    return tmp_path / "board"


DIGEST = sha256(CONTENT).hexdigest()


def test_a_file_comes_out_as_it_went_in_and_is_packed_the_same_again(
    board: Path, tmp_path: Path
) -> None:
    packed = artefact_file(board, DIGEST)
    assert packed.stat().st_size < len(CONTENT) / 10
    assert unpack_artefact(board, DIGEST, tmp_path / "again").read_bytes() == CONTENT
    before = packed.read_bytes()
    packed.unlink()
    (tmp_path / "other name").write_bytes(CONTENT)
    assert keep_artefact(tmp_path / "other name", board) == DIGEST
    assert packed.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (gzip.compress(b"something else", mtime=0), "changed since"),
        (b"no archive", "cannot be unpacked"),
        (gzip.compress(CONTENT, mtime=0)[:-20], "cannot be unpacked"),
        (None, "lacks an artefact"),
    ],
)
def test_what_is_not_the_file_is_refused_and_leaves_nothing(
    board: Path, tmp_path: Path, content: bytes | None, said: str
) -> None:
    file = artefact_file(board, DIGEST)
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadFile, match=said):
        unpack_artefact(board, DIGEST, tmp_path / "out" / "again")
    assert not list((tmp_path / "out").iterdir())


def test_a_bomb_is_stopped_at_the_limit(
    board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artefacts, "LARGEST", len(CONTENT) - 1)
    with pytest.raises(BadFile, match="holds more than"):
        unpack_artefact(board, DIGEST, tmp_path / "again")


def test_a_link_out_of_the_board_is_not_followed(board: Path, tmp_path: Path) -> None:
    file = artefact_file(board, DIGEST)
    file.rename(tmp_path / "outside.gz")
    file.symlink_to(tmp_path / "outside.gz")
    with pytest.raises(BadFile, match="leads out of the board"):
        unpack_artefact(board, DIGEST, tmp_path / "again")
