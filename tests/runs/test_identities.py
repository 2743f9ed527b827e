"""What changed between two identities, in words, and what a folder binds."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from mechassay.errors import OtherContent
from mechassay.runs.identities import Identities, changes_of, day, digest_of_seed, key_digest

MINE = {"weights": "w", "rounded": "r", "dtype": "float32", "config": "c", "tokenizer": "t"}
BEFORE = {"model mine": {**MINE, "since": f"{datetime.now(UTC).year}-06-15T12:00:00+00:00"}}


@pytest.mark.parametrize(
    ("changed", "phrase"),
    [
        ({}, ""),
        ({"dtype": "float64"}, ""),
        ({"weights": "x", "rounded": "y"}, "mine has other weights than on 15 Jun"),
        (
            {"weights": "x"},
            "mine has other weights (the same but for rounding) than on 15 Jun",
        ),
        ({"tokenizer": "u"}, "mine has another tokenizer than on 15 Jun"),
        (
            {"weights": "x", "rounded": "y", "config": "d", "tokenizer": "u"},
            "mine has other weights and another configuration and another tokenizer than on 15 Jun",
        ),
    ],
)
def test_what_changed_of_a_model(changed: dict[str, str], phrase: str) -> None:
    found = changes_of(BEFORE, {"model mine": {**MINE, **changed}})
    assert found == ([phrase] if phrase else [])


def test_what_is_not_bound_or_not_known_did_not_change() -> None:
    assert changes_of(BEFORE, {"model other": MINE}) == []
    assert changes_of(BEFORE, {}) == []
    stored = {"task a b.csv": {"content": "1", "since": "2020-02-01T12:00:00+00:00"}}
    assert changes_of(stored, {"task a b.csv": {"content": "2"}}) == [
        "a b.csv has other content than on 1 Feb 2020"
    ]


def test_days() -> None:
    assert day(f"{datetime.now(UTC).year}-11-28T12:00:00+00:00") == "28 Nov"
    assert day("2019-11-28T12:00:00+00:00") == "28 Nov 2019"


def test_a_folder_binds_the_first_identity(tmp_path: Path) -> None:
    identities = Identities(tmp_path)
    assert not identities.exist and identities.stored() == {}
    identities.bind({"model mine": MINE})
    identities.bind({"model mine": MINE, "task t": {"content": "1"}})
    with pytest.raises(OtherContent, match="mine has another tokenizer than on") as refused:
        identities.bind({"model mine": {**MINE, "tokenizer": "u"}, "file f": {"content": "2"}})
    assert len(refused.value.changes) == 1
    assert identities.stored()["model mine"]["tokenizer"] == "t"
    identities.reset()
    assert identities.exist and identities.stored() == {}


def test_keys_of_files_are_those_of_their_names() -> None:
    assert key_digest("file a/x.json") == key_digest("file b/x.json") != key_digest("file a/y.json")
    assert key_digest("model a/x") != key_digest("model b/x")


def test_digests_of_seeds() -> None:
    assert digest_of_seed(1) == digest_of_seed(1) != digest_of_seed(2)
    assert len(digest_of_seed(1)) == 16 and digest_of_seed(1) != "1"
