from __future__ import annotations

import os
from pathlib import Path

import pytest

from mechassay.errors import BadFile, BadUsage
from mechassay.leaderboard.private_split import PrivateSeeds, ServiceLimits, ServiceSettings, add_seed

SEED, OLD = 4_000_000_000_000_000_007, 3_000_000_000_000_000_011
posix = pytest.mark.skipif(os.name != "posix", reason="files have no rights of others here")


def seeds(tmp_path: Path, content: str, mode: int = 0o600) -> Path:
    file = tmp_path / "seeds"
    file.write_text(content)
    file.chmod(mode)
    return file


def test_the_last_seed_is_current_and_old_ones_stay(tmp_path: Path) -> None:
    found = PrivateSeeds.read(seeds(tmp_path, f"# ours\n2026-10 {OLD}\n\n2026-11  {SEED}\n"))
    assert (found.current.epoch, found.current.seed) == ("2026-11", SEED)
    assert [each.epoch for each in found.epochs] == ["2026-10", "2026-11"]


def test_a_seed_is_never_shown(tmp_path: Path) -> None:
    found = PrivateSeeds.read(seeds(tmp_path, f"2026-11 {SEED}\n"))
    for text in (repr(found), str(found), f"{found.current}", repr([found.current])):
        assert str(SEED) not in text and "2026-11" in text


@posix
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o601])
def test_a_file_that_others_can_use_is_refused(tmp_path: Path, mode: int) -> None:
    file = seeds(tmp_path, f"2026-11 {SEED}\n", mode)
    with pytest.raises(BadFile, match="others can read it: chmod 600") as caught:
        PrivateSeeds.read(file)
    assert str(SEED) not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "has no seed"),
        ("# nothing\n", "has no seed"),
        (f"{SEED}\n", "line 1: is not EPOCH SEED"),
        (f"\na {SEED} b\n", "line 2: is not EPOCH SEED"),
        (f"../a {SEED}\n", "is not EPOCH SEED"),
        (f"a -{SEED}\n", "no whole number"),
        (f"a {SEED}.0\n", "no whole number"),
        (f"a {SEED}000\n", "no whole number"),
        (f"a {2**63}\n", "below 2\\^63"),
        ("a 12345\n", "nobody finds it by trying"),
        (f"a {SEED}\na {OLD}\n", "has the epoch a twice"),
    ],
)
def test_lines_that_are_none_are_refused_without_their_seed(
    tmp_path: Path, content: str, says: str
) -> None:
    with pytest.raises(BadFile, match=says) as caught:
        PrivateSeeds.read(seeds(tmp_path, content))
    assert str(SEED) not in str(caught.value) and "12345" not in str(caught.value)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="cannot be read"):
        PrivateSeeds.read(tmp_path / "none")
    file = seeds(tmp_path, "")
    file.write_bytes(b"a \xff\xfe12345")
    with pytest.raises(BadFile, match="no text"):
        PrivateSeeds.read(file)


def test_what_is_not_said_lies_in_the_folder(tmp_path: Path) -> None:
    found = ServiceSettings(tmp_path)
    assert found.database == f"sqlite:///{tmp_path / 'board.sqlite'}"
    assert found.store == str(tmp_path / "store") and found.scratch == tmp_path / "scratch"
    assert found.seeds() is None


def test_settings_show_no_password_and_no_seed(tmp_path: Path) -> None:
    file = seeds(tmp_path, f"2026-11 {SEED}\n")
    url = "postgresql://ann:secret@host/db"
    found = ServiceSettings(tmp_path, database=url, private_seed_file=file)
    read = found.seeds()
    assert read is not None and read.current.seed == SEED and found.database == url
    assert "secret" not in repr(found) and str(SEED) not in repr(found)


def test_a_rotation_needs_no_restart(tmp_path: Path) -> None:
    file = seeds(tmp_path, f"a {OLD}\n")
    found = ServiceSettings(tmp_path, private_seed_file=file)
    file.write_text(f"a {OLD}\nb {SEED}\n")
    read = found.seeds()
    assert read is not None and read.current.epoch == "b"


def test_limits_count_from_what_there_is() -> None:
    limits = ServiceLimits(a_day=2, at_once=1)
    limits.check("ann", pending=0, today=1)
    with pytest.raises(Exception, match="24 hours"):
        limits.check("ann", pending=0, today=2)
    with pytest.raises(Exception, match="wait for their evaluation"):
        limits.check("ann", pending=1, today=1)


def test_drawn_seeds_can_be_read_and_differ(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "seeds"
    assert [add_seed(file, epoch) for epoch in ("a", "b", "c")] == [1, 2, 3]
    found = PrivateSeeds.read(file)
    assert [each.epoch for each in found.epochs] == ["a", "b", "c"]
    assert len({each.seed for each in found.epochs}) == 3
    assert os.name != "posix" or file.stat().st_mode & 0o777 == 0o600


def test_a_drawn_seed_stands_in_a_line_of_its_own(tmp_path: Path) -> None:
    file = seeds(tmp_path, f"a {SEED}")
    add_seed(file, "b")
    assert PrivateSeeds.read(file).epochs[0].seed == SEED


def test_an_epoch_has_one_seed_and_a_plain_name(tmp_path: Path) -> None:
    file = seeds(tmp_path, f"a {SEED}\n")
    for epoch, says in (("a", "already"), ("b c", "letters"), ("../b", "letters"), ("", "letters")):
        with pytest.raises(BadUsage, match=says):
            add_seed(file, epoch)
    assert file.read_text() == f"a {SEED}\n"


@posix
def test_a_seed_is_not_added_where_others_read(tmp_path: Path) -> None:
    file = seeds(tmp_path, f"a {SEED}\n", 0o644)
    with pytest.raises(BadFile, match="others can read it"):
        add_seed(file, "b")
    assert file.read_text() == f"a {SEED}\n"
