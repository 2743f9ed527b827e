"""Changes of real repositories, which are made in a temporary folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from helpers.board_host import ALONE, MadeRepository
from mechassay.cli.leaderboard import check_change
from mechassay.errors import BadFile, BadUsage
from mechassay.leaderboard import repository as module
from mechassay.leaderboard.repository import SubmissionChange, read_change

OWN = "submissions/eap-ig"
HOSTILE = "#!/bin/sh\ntouch {marker}\n"


class Board(MadeRepository):
    """A board of which strangers want to change something."""

    @property
    def base(self) -> str:
        return self.git("rev-parse", "main")

    def with_entries(self, *entries: tuple[str, str, bytes]) -> str:
        """A commit whose folder of one submission has such entries."""
        own = self.tree(*entries)
        submissions = self.tree(("40000", own, b"eap-ig"))
        return self.child(self.tree(("40000", submissions, b"submissions")), self.base)

    def read(self, head: str, base: str = "main", **limits: Any) -> SubmissionChange:
        return read_change(base, head, self.folder, **limits)

    def refused(self, head: str, base: str = "main", **limits: Any) -> list[str]:
        """The reasons, each as one line; there is one at least."""
        change = self.read(head, base, **limits)
        assert change.problems
        assert change.name == ""
        lines = [f"{each.path}: {each.message}" for each in change.problems]
        assert all(line.isprintable() for line in lines)
        return lines


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    board = Board(MadeRepository.at(tmp_path / "board").folder)
    board.git("branch", "main", board.commit({"README.md": b"1", "submissions/README.md": b"1"}))
    return board


def test_a_new_submission_is_named(made: Board) -> None:
    files = {f"{OWN}/submission.yaml": b"name: x\n", f"{OWN}/ioi_gpt2/scores 1.json": b"{}"}
    change = made.read(made.commit(files, made.base))
    assert change.name == "eap-ig"
    assert change.notes == ("submissions/eap-ig: is new; 2 files then",)


def test_an_existing_one_is_changed_or_removed(made: Board) -> None:
    first = made.commit({f"{OWN}/a.json": b"1", f"{OWN}/b.json": b"1"}, made.base)
    second = made.commit({f"{OWN}/a.json": b"2"}, first)
    assert made.read(second, first).notes == (
        "submissions/eap-ig: changes an existing submission; 2 files then",
    )
    removed = made.commit({}, second, removed=(OWN,))
    gone = made.read(removed, second)
    assert (gone.name, gone.notes) == ("eap-ig", ("submissions/eap-ig: removes it",))


def test_what_the_base_gained_meanwhile_is_no_change(made: Board) -> None:
    head = made.commit({f"{OWN}/a.json": b"1"}, made.base)
    later = made.commit({"track.yaml": b"limit: 5", "submissions/other/a.json": b"1"}, made.base)
    assert made.read(head, later).name == "eap-ig"


def test_every_other_path_is_named_at_once(made: Board) -> None:
    files = {
        f"{OWN}/a.json": b"1",
        "track.yaml": b"limit: 1",
        ".github/workflows/publish.yml": b"on: push",
        "README.md": b"mine",
        "Submissions/x/a.json": b"1",
        "submissions/README.md": b"mine",
        "submissions-old/eap/a.json": b"1",
    }
    lines = made.refused(made.commit(files, made.base))
    assert len(lines) == 6
    named = {line.split(": ")[0] for line in lines}
    assert named == set(files) - {f"{OWN}/a.json"}


def test_a_path_that_is_removed_or_moved_is_named_too(made: Board) -> None:
    first = made.commit({"submissions/other/a.json": b"11111", "docs/x": b"1"}, made.base)
    moved = made.commit({f"{OWN}/a.json": b"11111"}, first, removed=("submissions/other", "docs"))
    lines = made.refused(moved, first)
    assert any(line.startswith("docs/x: only submissions/NAME/") for line in lines)
    assert any(line.startswith("submissions/other: one of 2 submissions") for line in lines)
    assert any(line.startswith("submissions/eap-ig: one of 2 submissions") for line in lines)


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("100755", "is executable"),
        ("120000", "is a symbolic link"),
        ("160000", "is a submodule"),
    ],
)
def test_modes(made: Board, mode: str, said: str) -> None:
    held: Any = made.base if mode == "160000" else b"../../track.yaml"
    head = made.commit({f"{OWN}/a.json": b"1", f"{OWN}/in/b.json": (mode, held)}, made.base)
    (line,) = made.refused(head)
    assert line.startswith(f"{OWN}/in/b.json: {said}")


def test_a_device_is_no_file(made: Board) -> None:
    # Git reads a mode that it does not know as a submodule.
    head = made.with_entries(("020000", made.blob(b"1"), b"a.json"))
    assert any(line.startswith(f"{OWN}/a.json: is a submodule") for line in made.refused(head))


def test_a_file_or_a_link_in_place_of_the_folder(made: Board) -> None:
    for mode in ("100644", "120000", "160000"):
        held: Any = made.base if mode == "160000" else b"/etc"
        head = made.commit({"submissions/eap-ig": (mode, held)}, made.base)
        assert "a submission is a folder with files in it" in made.refused(head)[0]
    first = made.commit({f"{OWN}/a.json": b"1"}, made.base)
    linked = made.commit({OWN: ("120000", b"/etc")}, first, removed=(OWN,))
    assert made.refused(linked, first)[0].startswith(f"{OWN}: a submission is a folder")


@pytest.mark.parametrize("path", [".gitattributes", "in/.gitmodules", ".git2/x", "in/..x"])
def test_hidden_names(made: Board, path: str) -> None:
    (line,) = made.refused(made.commit({f"{OWN}/{path}": b"1"}, made.base))
    assert line.startswith(f"{OWN}/{path}: a hidden file or folder")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"a\nb.json", "a\\u000ab.json"),
        (b"a\x1b[31m.json", "a\\u001b[31m.json"),
        (b"a\xff.json", "a\\udcff.json"),
        ("a\u202egnp.json".encode(), "a\\u202egnp.json"),
        (b"$(touch x).json", "\\u0024(touch x).json"),
        (b"a`b`.json", "a\\u0060b\\u0060.json"),
        (b"a\\b.json", "a\\u005cb.json"),
        (b"##[add-path]x", "\\u0023\\u0023[add-path]x"),
    ],
)
def test_odd_names(made: Board, name: bytes, shown: str) -> None:
    head = made.with_entries(("100644", made.blob(b"1"), name))
    lines = made.refused(head)
    assert any(line.startswith(f"{OWN}/{shown}: a name with other signs") for line in lines)


def test_paths_that_a_tree_should_not_have(made: Board) -> None:
    content = made.blob(b"1")
    for name in (b"..", b"../../.github/x", b"a//b", b".", b".GIT"):
        head = made.with_entries(("100644", content, name))
        assert made.refused(head), name
    inside = made.tree(("100644", content, b"x"))
    for entries in (
        (("100644", content, b"a"), ("40000", inside, b"a")),
        (("40000", inside, b"a"), ("100644", content, b"a")),
    ):
        both = made.with_entries(*entries)
        assert any("is a file and a folder" in line for line in made.refused(both))
    twice = made.with_entries(("100644", content, b"a"), ("100644", content, b"a"))
    with pytest.raises(BadFile, match=r"has submissions/eap-ig/a twice"):
        made.read(twice)


def test_long_and_deep_paths(made: Board) -> None:
    deep = "/".join("d" for _ in range(11))
    files = {f"{OWN}/{'a' * 201}": b"1", f"{OWN}/{deep}": b"1", f"{OWN}/{'a' * 200}": b"1"}
    lines = made.refused(made.commit(files, made.base))
    assert len(lines) == 2
    assert all("a path of more than 200 characters or 10 folders" in line for line in lines)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("in/Scores.json", "in/scores.json"),
        ("In/a.json", "in/b.json"),
        ("straße.json", "strasse.json"),
        ("\ufb01.json", "fi.json"),
        ("\u00e9/a", "\u00c9/b"),
    ],
)
def test_names_that_collide_in_a_submission(made: Board, one: str, other: str) -> None:
    head = made.commit({f"{OWN}/{one}": b"1", f"{OWN}/{other}": b"1"}, made.base)
    (line,) = made.refused(head)
    assert "cannot be told from" in line


def test_a_name_that_collides_with_an_existing_one(made: Board) -> None:
    base = made.commit({"submissions/EAP-IG/a.json": b"1"}, made.base)
    lines = made.refused(made.commit({f"{OWN}/a.json": b"1"}, base), base)
    assert lines == [f"{OWN}: cannot be told from submissions/EAP-IG on some systems."]


@pytest.mark.parametrize(
    "name",
    [
        "EAP",
        "-x",
        "_x",
        "x y",
        "a" * 65,
        "x.",
        "é",
        "x:y",
        "con",
        "aux.json",
        "com1",
        "$x",
        "--help",
    ],
)
def test_bad_names_of_submissions(made: Board, name: str) -> None:
    lines = made.refused(made.commit({f"submissions/{name}/a.json": b"1"}, made.base))
    assert len(lines) == 1
    assert "the name of a folder" in lines[0] or "for a device" in lines[0]


@pytest.mark.parametrize("name", ["a" * 64, "0", "x.y_z-1", "console", "com", "aux-2"])
def test_good_names_of_submissions(made: Board, name: str) -> None:
    head = made.commit({f"submissions/{name}/a.json": b"1"}, made.base)
    assert made.read(head).name == name


def test_limits_of_files_and_bytes(made: Board) -> None:
    head = made.commit({f"{OWN}/{i}.json": b"x" * 1000 for i in range(5)}, made.base)
    assert made.read(head, files=5, megabytes=0.005).name == "eap-ig"
    assert made.refused(head, files=4) == [f"{OWN}: 5 files; at most 4 are allowed."]
    assert made.refused(head, megabytes=0.004) == [f"{OWN}: 0.0 MB; at most 0.004 MB are allowed."]
    # Files that were there before count: the limit is of the submission, and not of one change.
    more = made.commit({f"{OWN}/5.json": b"x"}, head)
    assert made.refused(more, head, files=5) == [f"{OWN}: 6 files; at most 5 are allowed."]


def test_a_tree_of_endless_files_is_not_listed_to_its_end(
    made: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_LISTING", 10**6)
    content = made.blob(b"1")
    level = made.tree(*(("100644", content, b"%d" % i) for i in range(10)))
    for _ in range(9):
        level = made.tree(*(("40000", level, b"%d" % i) for i in range(10)))
    with pytest.raises(BadFile, match=r"git ls-tree lists more than 0 MB of names; it was"):
        made.read(made.with_entries(("40000", level, b"bomb")))


def test_an_empty_change_and_one_that_is_merged(made: Board) -> None:
    empty = made.commit({}, made.base)
    assert "changes no file" in made.refused(empty)[0]
    head = made.commit({f"{OWN}/a.json": b"1"}, made.base)
    assert "changes no file" in made.refused(head, head)[0]


def test_unrelated_histories(made: Board) -> None:
    alone = made.commit({f"{OWN}/a.json": b"1"})
    with pytest.raises(BadUsage, match="no history in common"):
        made.read(alone)


def test_a_submission_that_the_base_changed_meanwhile(made: Board) -> None:
    head = made.commit({f"{OWN}/a.json": b"1"}, made.base)
    base = made.commit({f"{OWN}/b.json": b"1"}, made.base)
    (line,) = made.refused(head, base)
    assert "changed it since this branch began" in line
    merged = made.commit({f"{OWN}/a.json": b"1"}, base, head)
    assert made.read(merged, base).name == "eap-ig"


def test_several_common_commits_could_hide_a_change(made: Board) -> None:
    # The difference to one of the two common commits does not show track.yaml, which a merge sets
    # back.
    old, new = b"limit: 1", b"limit: 100"
    start = made.commit({"track.yaml": old}, made.base)
    ours = made.commit({"track.yaml": new}, start)
    theirs = made.commit({f"{OWN}/a.json": b"1"}, start)
    base = made.commit({f"{OWN}/a.json": b"1"}, ours, theirs)
    head = made.commit({f"{OWN}/a.json": b"2"}, theirs, ours)
    with pytest.raises(BadUsage, match="2 common commits"):
        made.read(head, base)
    fixed = made.commit({f"{OWN}/a.json": b"2"}, base, head)
    assert made.read(fixed, base).name == "eap-ig"


@pytest.mark.parametrize(
    "revision", ["", "--output=x", "-h", "nothing", "a\nb", "main:README.md", "a\0b", "0" * 40]
)
def test_revisions_that_are_none(made: Board, revision: str) -> None:
    for base, head in (("main", revision), (revision, "main")):
        with pytest.raises(BadUsage) as refused:
            made.read(head, base)
        assert len(str(refused.value).splitlines()) == 1
        # What could be an option never reaches git.
        assert ("is no revision" in str(refused.value)) == (
            not revision[:1].isalnum() or not revision.isprintable()
        )


def test_no_repository_and_no_git(
    made: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    for folder in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(BadFile) as refused:
            read_change("main", "main", folder)
        assert len(str(refused.value).splitlines()) == 1
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(BadUsage, match="The command git is not on this machine"):
        made.read("main")


def test_a_content_that_is_not_there(made: Board) -> None:
    head = made.with_entries(("100644", "1" * 40, b"a.json"))
    with pytest.raises(BadFile, match="is missing, and no file"):
        made.read(head)


def test_nothing_of_the_repository_or_its_configuration_is_run(made: Board, tmp_path: Path) -> None:
    marker, program = tmp_path / "marker", tmp_path / "program"
    program.write_text(HOSTILE.format(marker=marker))
    program.chmod(0o755)
    attributes = {".gitattributes": b"* diff=x filter=x export-subst\n"}
    base = made.commit(attributes, made.base)
    files = {f"{OWN}/a.json": b"1", "sub": ("160000", made.base), f"{OWN}/.gitattributes": b"*"}
    head = made.commit(files, base)
    for name in ("core.fsmonitor", "diff.external", "diff.x.command", "diff.x.textconv"):
        made.git("config", name, str(program))
    for name in ("filter.x.smudge", "filter.x.process", "core.pager", "core.sshCommand"):
        made.git("config", name, str(program))
    made.git("config", "submodule.sub.ignore", "all")
    hooks = made.folder / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-checkout", "reference-transaction", "post-index-change"):
        (hooks / name).symlink_to(program)
    named = [line.split(":")[0] for line in made.refused(head, base)]
    assert named == ["sub", f"{OWN}/.gitattributes"]
    assert not marker.exists()
    # Nothing was checked out either.
    assert sorted(path.name for path in made.folder.iterdir()) == [".git", "index-made"]


def test_replaced_objects_are_not_believed(made: Board) -> None:
    honest = made.commit({f"{OWN}/a.json": b"1"}, made.base)
    head = made.commit({"track.yaml": b"mine"}, made.base)
    made.git("replace", head, honest)
    assert made.refused(head)[0].startswith("track.yaml: only submissions/NAME/")


@pytest.mark.slow
@given(
    name=st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=20)
)
@example(name="::error::x")
@example(name="a\u0300")
@example(name="\u0661")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_name_is_taken_or_refused_in_one_line(made: Board, name: str) -> None:
    head = made.with_entries(("100644", made.blob(b"1"), name.encode()))
    change = made.read(head)
    plain = all(x.isalnum() or x in " _.,:;+=@()[]-" for x in name) and not name.startswith(".")
    refused = [each for each in change.problems if each.path.startswith(OWN)]
    # What git's own base had is removed by this commit, and named.
    assert len(change.problems) - len(refused) == 2
    assert bool(refused) == (not plain)
    assert all(f"{each.path}{each.message}".isprintable() for each in change.problems)


@pytest.fixture
def command() -> Callable[..., Any]:
    app = typer.Typer()
    app.command()(check_change)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def test_the_command_prints_the_name_alone(made: Board, command: Callable[..., Any]) -> None:
    head = made.commit({f"{OWN}/a.json": b"1"}, made.base)
    outcome = command("main", head, "--repository", made.folder)
    assert (outcome.exit_code, outcome.stdout) == (0, "eap-ig\n")
    assert outcome.stderr == "note: submissions/eap-ig: is new; 1 file then\n"


def test_the_command_refuses_with_2_and_every_line(
    made: Board, command: Callable[..., Any]
) -> None:
    files = {f"{OWN}/a.json": ("100755", b"1"), "track.yaml": b"1", "::error::x": b"1"}
    outcome = command("main", made.commit(files, made.base), "--repository", made.folder)
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    lines = outcome.stderr.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("mechassay: ") for line in lines)
