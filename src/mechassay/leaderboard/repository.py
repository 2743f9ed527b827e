"""The repository of a board: what is written into it, and what a pull request may change.

Submissions are folders `submissions/NAME/` that arrive by pull request. A check of the change,
an evaluation on public examples, the publishing after a merge and the weekly recomputing are GitHub
Actions; they call commands and scripts that run elsewhere too (`data/repository`).

The change is the difference between the commit that both sides have in common and the head, as a
merge applies it. It is refused, with one line for each mistake, if it touches any other path or two
submissions, or if the folder holds

    links, submodules, executable files      data has the mode 100644 alone
    hidden names, odd or colliding names     file systems confuse them, or forbid them
    too many files, or too many bytes

The head belongs to a stranger. It is read as git objects, by listings of trees alone: nothing is
checked out, and hooks, filters, attributes and programs for differences are never run. A few
objects can make a tree of any number of files: such a listing is stopped.
"""

from __future__ import annotations

import os
import re
import subprocess
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile

from mechassay.errors import BadFile, BadUsage, first_line
from mechassay.utils.display import counted
from mechassay.utils.files import Problems, write_text
from mechassay.version import __version__

WORKFLOWS = ("check-change", "evaluate", "publish", "recompute")
SCRIPTS = ("install", "fetch-results", "evaluate-all", "build-site", "keep-results")
WRITTEN = {
    "README.md": "README.md",
    "OPERATING.md": "OPERATING.md",
    "requirements.txt": "requirements.txt",
    ".gitignore": "gitignore",
    ".gitattributes": "gitattributes",
    "submissions/.gitkeep": "gitkeep",
    **{f"scripts/{name}.sh": f"scripts/{name}.sh" for name in SCRIPTS},
    **{f".github/workflows/{name}.yml": f"workflows/{name}.yml" for name in WORKFLOWS},
}
"""Files of the repository, and of `data/repository`; the track comes from where it is packaged."""
SUBMISSIONS = "submissions"
MOST_FILES, MOST_MEGABYTES = 2000, 2000.0
MOST, MOST_PATHS = 10, 1000
"""Submissions and paths of one change that are looked into: two are too many already."""
LONGEST_PATH, DEEPEST = 200, 10
"""Characters of a path in the folder of a submission, and folders in it."""
LONGEST_LISTING = 2**26
"""Bytes of what git lists of one tree or difference."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_PART = re.compile(r"[\w .,:;+=@()\[\]-]+")
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?")
"""Names that Windows keeps for devices, with any ending."""
_DATA, _FOLDER = "100644", "040000"
_MODES = {
    "100755": "is executable; data is not (chmod -x).",
    "120000": "is a symbolic link; put the file itself here.",
    "160000": "is a submodule; put the files themselves here.",
}
_SAFE = (
    "--no-pager",
    "--no-replace-objects",
    "--no-optional-locks",
    "--literal-pathspecs",
    *("-c", "core.quotepath=off", "-c", "core.fsmonitor=false"),
    *("-c", f"core.hooksPath={os.devnull}"),
)


def write_repository(folder: Path) -> list[str]:
    """Write the repository of a board; the paths of its files.

    Args:
        folder: new or empty, or the clone of an empty repository.

    Raises:
        BadUsage: there is something already.
    """
    if folder.exists() and not folder.is_dir():
        raise BadUsage(f"{folder}: is a file; the repository of a board is a folder.")
    there = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
    if there not in ([], [".git"]):
        raise BadUsage(f"{folder}: is not empty (it has {there[0]}); name a new or empty folder.")
    packaged = files("mechassay.leaderboard") / "data" / "repository"
    texts = {path: packaged.joinpath(name).read_text("utf-8") for path, name in WRITTEN.items()}
    # The version of the package; a file that is kept in step by hand would be forgotten.
    texts["requirements.txt"] = texts["requirements.txt"].replace("VERSION", __version__)
    track = files("mechassay.leaderboard").joinpath("data/track.yaml")
    texts["track.yaml"] = track.read_text("utf-8")
    for path, text in texts.items():
        write_text(folder / path, text)
    return sorted(texts)


@dataclass(frozen=True)
class SubmissionChange:
    """What a pull request does to one submission.

    Attributes:
        name: of the submission; "" where the change is refused.
        problems: every reason to refuse it.
        notes: what a reviewer should know.
    """

    name: str
    problems: Problems
    notes: tuple[str, ...] = ()


def read_change(
    base: str,
    head: str,
    repository: Path = Path(),
    *,
    files: int = MOST_FILES,
    megabytes: float = MOST_MEGABYTES,
) -> SubmissionChange:
    """What the commits of `head` change that `base` does not have.

    Args:
        base: a revision of the board's own branch.
        head: a revision of the pull request.
        files: how many the folder of a submission may have.
        megabytes: 10^6 bytes of all its files together.

    Raises:
        BadUsage: a revision is none, git is not installed, or several commits are equally good as
            the common one.
        BadFile: no repository, or git cannot read it.
    """
    git = _Git(repository)
    ours, theirs = git.commit(base), git.commit(head)
    common = git.common(ours, theirs)
    before, after = git.changed(common, theirs)
    touched = _different(before, after)
    problems, names = Problems(), dict[str, None]()
    if not touched:
        problems.note(".", f"{head} changes no file that {base} does not have already.")
    for path in touched:
        folder, _, rest = path.partition("/")
        name, inside, _ = rest.partition("/")
        if folder != SUBMISSIONS or not name:
            message = f"only {SUBMISSIONS}/NAME/ of one submission may change."
            problems.note(_escaped(path), message)
        elif not inside:
            problems.note(_escaped(path), "a submission is a folder with files in it.")
        else:
            names[name] = None
    there, then = git.listed(ours, f"{SUBMISSIONS}/"), git.listed(common, f"{SUBMISSIONS}/")
    files_of = {name: [x for x in after.values() if x.is_in(name)] for name in [*names][:MOST]}
    for name, entries in files_of.items():
        own = f"{SUBMISSIONS}/{name}"
        _check_name(own, there, problems)
        if len(names) > 1:
            message = f"one of {len(names)} submissions; a pull request changes one."
            problems.note(_escaped(own), message)
        if there.get(own) != then.get(own):
            message = f"{base} changed it since this branch began: merge {base} first."
            problems.note(_escaped(own), message)
        _check_files(entries, problems)
        if len(entries) > files:
            message = f"{len(entries):,} files; at most {files:,} are allowed."
            problems.note(_escaped(own), message)
        elif (total := git.size(entries)) > megabytes * 10**6:
            message = f"{total / 10**6:,.1f} MB; at most {megabytes:,g} MB are allowed."
            problems.note(_escaped(own), message)
    if problems:
        return SubmissionChange("", problems)
    ((name, entries),) = files_of.items()
    did = "changes an existing submission" if f"{SUBMISSIONS}/{name}" in there else "is new"
    n = counted(len(entries), "file")
    note = f"{SUBMISSIONS}/{name}: {f'{did}; {n} then' if entries else 'removes it'}"
    return SubmissionChange(name, problems, (note,))


def _check_name(own: str, others: Iterable[str], problems: Problems) -> None:
    """Note what is wrong with the name of a submission's folder, among those of others."""
    name = own.removeprefix(f"{SUBMISSIONS}/")
    if not _NAME.fullmatch(name) or name.endswith("."):
        problems.note(
            _escaped(own),
            "the name of a folder has small letters, digits and ._- alone, begins with a letter or"
            " a digit, does not end in a dot, and has at most 64 characters.",
        )
    if _DEVICES.fullmatch(_same(name)):
        problems.note(_escaped(own), "Windows keeps this name for a device; choose another one.")
    for other in others:
        if other != own and _same(other) == _same(own):
            problems.note(_escaped(own), f"cannot be told from {_escaped(other)} on some systems.")


def _check_files(entries: Sequence[_Entry], problems: Problems) -> None:
    """Note what is wrong with the modes and paths of a submission's files."""
    taken: dict[str, str] = {}
    folders = {str(folder) for entry in entries for folder in PurePosixPath(entry.path).parents}
    for entry in entries:
        if entry.mode != _DATA:
            message = _MODES.get(entry.mode, f"has the mode {entry.mode}; data has {_DATA}.")
            problems.note(_escaped(entry.path), message)
        parts = entry.path.split("/")
        _, _, *inside = parts
        if any(part.startswith(".") for part in inside):
            problems.note(
                _escaped(entry.path), "a hidden file or folder; names begin without a dot."
            )
        elif not all(map(_PART.fullmatch, inside)):
            problems.note(
                _escaped(entry.path),
                "a name with other signs than letters, digits, spaces and .,:;+=@()[]-_",
            )
        if len("/".join(inside)) > LONGEST_PATH or len(inside) > DEEPEST:
            message = f"a path of more than {LONGEST_PATH} characters or {DEEPEST} folders."
            problems.note(_escaped(entry.path), message)
        above = ["/".join(parts[: i + 1]) for i in range(2, len(parts))]
        first = [taken.setdefault(_same(path), path) for path in above]
        if other := [x for x, path in zip(first, above, strict=True) if x != path]:
            message = f"cannot be told from {_escaped(other[0])} on some systems."
            problems.note(_escaped(entry.path), message)
        if entry.path in folders:
            problems.note(_escaped(entry.path), "is a file and a folder.")


def _same(name: str) -> str:
    """A name as file systems may confuse it with others."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def _escaped(path: str) -> str:
    r"""A path that others chose, in one line: signs that no path should have as `\u0023`."""
    return "".join(x if x == "/" or _PART.fullmatch(x) else f"\\u{ord(x):04x}" for x in path)


@dataclass(frozen=True)
class _Entry:
    """A file of a tree: its mode, the id of its content, its path."""

    mode: str
    content: str
    path: str

    def is_in(self, name: str) -> bool:
        """Whether it is a file of a submission."""
        return self.path.startswith(f"{SUBMISSIONS}/{name}/")


@dataclass(frozen=True)
class _Git:
    """A repository whose objects are read."""

    repository: Path

    def commit(self, revision: str) -> str:
        """The id of a commit."""
        if not revision or revision.startswith("-") or not revision.isprintable():
            raise BadUsage(f"{revision!r} is no revision: a branch, a tag or the id of a commit.")
        commit = self._run("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", fails=(1,))
        if not commit:
            raise BadUsage(f"{self.repository}: has no commit {revision!r}.")
        return commit.decode().strip()

    def common(self, base: str, head: str) -> str:
        """The commit that both have in common."""
        bases = self._run("merge-base", "--all", base, head, fails=(1,)).decode().split()
        if not bases:
            raise BadUsage(
                f"{head[:12]} has no history in common with {base[:12]}; in a shallow clone, fetch"
                " all of it first."
            )
        if len(bases) > 1:
            raise BadUsage(
                f"{head[:12]} and {base[:12]} have {len(bases)} common commits, so that no single"
                f" difference is what a merge changes: merge {base[:12]} into the branch first."
            )
        return bases[0]

    def changed(self, old: str, new: str) -> tuple[dict[str, _Entry], dict[str, _Entry]]:
        """The files of two commits, by path, below all that is not the same folder in both.

        Git's own difference is held in memory whole, however large a stranger makes it; a listing
        can be stopped.
        """
        roots = self.listed(old), self.listed(new)
        paths = _different(*roots)
        if SUBMISSIONS in paths and all(
            SUBMISSIONS in root and root[SUBMISSIONS].mode == _FOLDER for root in roots
        ):
            inside = f"{SUBMISSIONS}/"
            paths.remove(SUBMISSIONS)
            paths += _different(self.listed(old, inside), self.listed(new, inside))
        # Two are too many already, and a command has no room for any number.
        listed = paths[:MOST_PATHS]
        return self.listed(old, *listed, deep=True), self.listed(new, *listed, deep=True)

    def listed(self, commit: str, *paths: str, deep: bool = False) -> dict[str, _Entry]:
        """What a commit has by path: in its root where none is given."""
        if deep and not paths:
            return {}
        how = ("-r",) if deep else ()
        listing = self._run("ls-tree", "-z", "--full-tree", *how, commit, "--", *paths)
        entries: dict[str, _Entry] = {}
        for line in filter(None, listing.split(b"\0")):
            about, name = line.split(b"\t", 1)
            mode, _, content = about.decode().split()
            # Bytes that are no text stay, as signs that no name may have.
            path = name.decode("utf-8", "surrogateescape")
            if path in entries:
                raise BadFile(f"{commit[:12]}: has {_escaped(path)} twice.")
            entries[path] = _Entry(mode, content, path)
        return entries

    def size(self, entries: Iterable[_Entry]) -> int:
        """Bytes of all files together."""
        asked = [entry.content for entry in entries if entry.mode != "160000"]
        sizes = self._run("cat-file", "--batch-check", given="".join(f"{x}\n" for x in asked))
        total = 0
        for line in sizes.decode().splitlines():
            content, kind, *size = line.split()
            if kind != "blob":
                raise BadFile(f"{self.repository}: the content {content} is {kind}, and no file.")
            total += int(size[0])
        return total

    def _run(self, *words: str, given: str = "", fails: tuple[int, ...] = ()) -> bytes:
        """What git prints.

        Args:
            given: its standard input.
            fails: exit codes that say that there is nothing.
        """
        command = [
            *("git", *_SAFE, "-C", str(self.repository)),
            *(word.encode("utf-8", "surrogateescape") for word in words),
        ]
        # Nothing is asked for on a terminal, and nothing that lacks is fetched from elsewhere.
        environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1"}
        with TemporaryFile() as source, TemporaryFile() as errors:
            source.write(given.encode())
            source.seek(0)
            try:
                process = subprocess.Popen(
                    command, stdin=source, stdout=subprocess.PIPE, stderr=errors, env=environment
                )
            except FileNotFoundError:
                raise BadUsage("The command git is not on this machine: install it.") from None
            with process:
                assert process.stdout is not None
                printed = process.stdout.read(LONGEST_LISTING + 1)
                if len(printed) > LONGEST_LISTING:
                    process.kill()
                    raise BadFile(
                        f"{self.repository}: git {words[0]} lists more than"
                        f" {LONGEST_LISTING // 2**20} MB of names; it was stopped."
                    )
            if process.returncode == 0:
                return printed
            if process.returncode in fails:
                return b""
            errors.seek(0)
            reason = first_line(errors.read().decode("utf-8", "replace").removeprefix("fatal: "))
            raise BadFile(f"{self.repository}: git {words[0]} fails ({reason[:300]}).")


def _different(one: dict[str, _Entry], other: dict[str, _Entry]) -> list[str]:
    return sorted(path for path in {*one, *other} if one.get(path) != other.get(path))
