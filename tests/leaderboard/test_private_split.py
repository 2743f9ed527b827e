from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechassay.errors import BadFile, BadUsage
from mechassay.leaderboard.private_split import (
    PrivateSeed,
    PrivateSeeds,
    add_seed,
    published,
    resolved_digits,
)
from mechassay.progress import SILENT
from mechassay.records import Record
from mechassay.runs.circuits import CircuitsJob
from mechassay.runs.execute import run

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


# --- what is published ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "high", "places"),
    [
        (0.4, 0.6, 1),  # Half of it is .1, 1 in the first place.
        (0.401, 0.6, 2),
        (0.45, 0.55, 2),
        (-30.0, 50.0, -1),
        (0.0, 2e-4, 4),
        (1.0, 1.0, 15),
        (math.nan, 1.0, None),
        (0.0, math.inf, None),
    ],
)
def test_an_interval_resolves_the_digit_of_half_its_width(
    low: float, high: float, places: int | None
) -> None:
    assert resolved_digits(low, high) == places


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e3))
def test_rounding_moves_a_number_by_half_the_interval_at_most(value: float, half: float) -> None:
    low, high = value - half, value + half
    places = resolved_digits(low, high)
    assert places is not None and abs(round(value, places) - value) <= (high - low) / 2
    # A place more would be finer than a tenth of the interval's half.
    assert 10.0**-places > (high - low) / 2 / 10 * (1 - 1e-9)


@pytest.fixture
def private_record(tmp_path: Path) -> Record:
    """A record on private examples of a seed that is no secret here."""
    job = CircuitsJob(
        ("truth-ioi",),
        methods=("random",),
        train_limit=4,
        test_limit=4,
        test_split="private",
        private_seed=SEED,
    )
    (record,) = run(job, tmp_path / "run", progress=SILENT).records
    return record


def test_a_published_record_has_rounded_numbers_and_nothing_about_examples(
    private_record: Record,
) -> None:
    record = published(private_record, PrivateSeed("2026-11", SEED))
    assert private_record.tables and private_record.values is not None and private_record.realised
    assert not (record.tables or record.values or record.realised or record.warnings)
    assert record.task.args["epoch"] == "2026-11" and record.data["test"].split == "private"
    for before, after in zip(private_record.measures, record.measures, strict=True):
        own = private_record.measure(before.name)
        places = None if own is None else resolved_digits(own.low, own.high)
        if places is None:
            assert math.isnan(after.value)
        else:
            assert after.value == round(before.value, places) or math.isnan(before.value)
        assert after.n == before.n
    cpr = record.measure("cpr")
    assert cpr is not None and cpr.value != private_record.value("cpr")


def test_hashes_of_private_examples_are_keyed(private_record: Record) -> None:
    first, again = (published(private_record, PrivateSeed("a", SEED)) for _ in range(2))
    other = published(private_record, PrivateSeed("a", OLD))
    assert first.data["test"].hash == again.data["test"].hash != other.data["test"].hash
    text = first.model_dump_json()
    assert private_record.data["test"].hash not in text and str(SEED) not in text
    # Train examples are public: who has them may look.
    assert first.data["train"].hash == private_record.data["train"].hash
