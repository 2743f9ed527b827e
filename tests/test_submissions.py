"""What folders of others have in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from mechassay.errors import BadFile
from mechassay.submissions import Problem, Problems, leads_out, read_json


def test_links_out_of_a_folder_are_told_from_those_within(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "in").symlink_to(root / "a")
    (root / "out").symlink_to(tmp_path)
    (root / "nowhere").symlink_to(tmp_path / "none")
    assert not leads_out(root / "in", root) and not leads_out(root / "a", root)
    assert leads_out(root / "out", root) and leads_out(root / "nowhere", root)
    assert leads_out(root / ".." / "other", root)


def test_problems_are_collected_and_the_first_refuses(tmp_path: Path) -> None:
    found = Problems()
    found.note("a", "may be skipped.", warning=True)
    found.refuse(tmp_path)
    assert found.tried("b", lambda: 3) == 3
    file = tmp_path / "none.json"
    assert found.tried("none.json", lambda: read_json(file), file) is None
    assert found == [
        Problem("a", "may be skipped.", warning=True),
        Problem("none.json", "there is no such file."),
    ]
    found.note("c", "is wrong.")
    with pytest.raises(BadFile) as error:
        found.refuse(tmp_path)
    assert str(error.value) == (
        f"{file}: there is no such file. (1 more: `mechassay variables validate` lists all.)"
    )


@pytest.mark.parametrize("text", ["", "[" * 100_000, "[1]", "\ud800"])
def test_what_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "it.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(BadFile, match="JSON"):
        read_json(tmp_path / "it.json")
