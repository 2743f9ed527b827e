"""Results on the Hugging Face hub: pushed with a card that their records make, read back as data.

    push_to_hub("me/ioi-circuit", circuit, record)              values, files or a folder
    from_hub("me/ioi-circuit", "circuit.safetensors")           the value again
    pull("me/ioi-circuit", "ioi-circuit")                       the files

A repository holds files of data (`DATA`) and a README.md, the card, in one commit; nothing that
was there is removed. The card is the page of the records: first controls that fail, then its
answer, numbers with their intervals, how many examples and the controls. Records are read before
they are pushed: one that was edited is refused, and so is one of private examples.

Nothing but files of data is downloaded, of one commit, into the cache; what else a repository
holds, a pickle or code, is not. The loader of a file's kind reads it with all its checks.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from mechassay.errors import BadFile, BadUsage, MissingExtra, one_of
from mechassay.leaderboard.cells import is_private
from mechassay.leaderboard.folder import StoredBoards
from mechassay.leaderboard.rules import board_rules
from mechassay.models.sources import is_hub_id, split_revision
from mechassay.models.weight_files import cache_folder, quiet
from mechassay.results.page import Report, TextTable
from mechassay.results.reading import read_record
from mechassay.results.records import IDENTITY, Failure, Record
from mechassay.results.report import markdown_page
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine, counted, interval
from mechassay.utils.files import kind_of, leads_out
from mechassay.utils.hub import HubFiles, hub_reason
from mechassay.utils.registry import Registry
from mechassay.variables.alignment import HEADER, VariableAlignment
from mechassay.version import __version__

DATA = (".safetensors", ".json", ".jsonl", ".csv", ".parquet", ".yaml", ".gz")
"""How files end that are pushed and pulled; those of a board that end in .gz are its artefacts."""
CARD = "README.md"
LIBRARY = "library_name: mechassay"
MOST_CELLS, MOST_FILES = 60, 30
"""Rows of a card's tables; all of them are in the files."""
BOARDS = {f"data/{name}.json" for name in board_rules()}
KINDS = Registry(
    "kind of file",
    {
        "circuit": "mechassay.circuits.circuit:Circuit",
        "edge_scores": "mechassay.circuits.scores:EdgeScores",
        "node_scores": "mechassay.circuits.scores:NodeScores",
        "neuron_scores": "mechassay.circuits.scores:NeuronScores",
        "faithfulness curve": "mechassay.circuits.evaluation.curve:FaithfulnessCurve",
        "features": "mechassay.features.finder:Fit",
    },
)
"""The class whose `load` reads a `.safetensors` file, by the kind that the file says it is of."""


@dataclass(frozen=True)
class Pushed(OneLine):
    """What a repository of the hub has got.

    Attributes:
        revision: the commit; `from_hub(repo, revision=...)` always reads the same.
        files: pushed, the card among them.
        left_out: files of a folder that are no data, as pages.
    """

    repo: str
    revision: str
    url: str
    files: tuple[str, ...] = field(repr=False)
    left_out: tuple[str, ...] = field(default=(), repr=False)


@checked
def push_to_hub(
    repo: str, *parts: Any, license: str = "", private: bool = False, revision: str | None = None
) -> Pushed:
    """Push scores, circuits, directions, records, alignments or a board, with a card.

    Args:
        repo: OWNER/NAME; made if there is none.
        parts: values that have `save`, files, or a folder: of a run, a board, or any other.
        license: of the files, as the hub spells it: "mit", "apache-2.0"; the card has none if "".
        private: whether a repository that is made is private; else it is as the hub makes it.
        revision: the branch; main if None.

    Raises:
        BadUsage: nothing to push, two parts of one name, a file that is no data, no token, or a
            repository whose card is not of this package.
        BadFile: an edited record, one of private examples, or what the hub refuses.
        MissingExtra: huggingface_hub is not installed.
    """
    _check_repo(repo)
    with TemporaryDirectory() as scratch:
        files, left_out = _collected(parts, Path(scratch))
        card = _card(repo, files, license)
        return _push(repo, files, card, left_out, private, revision)


def _check_repo(repo: str) -> None:
    if not re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", repo):
        raise BadUsage(f"A repository of the hub is named OWNER/NAME; got {repo!r}.")


# What is pushed


def _collected(parts: Sequence[Any], scratch: Path) -> tuple[dict[str, Path], tuple[str, ...]]:
    """The files of data by their path in the repository, and what is left out of folders."""
    files: dict[str, Path] = {}
    left_out: list[str] = []
    for number, part in enumerate(parts):
        is_path = isinstance(part, str | Path)
        path = Path(part) if is_path else _saved(part, scratch / str(number))
        root = path if path.is_dir() and is_path else path.parent
        if not path.exists():
            raise BadFile(f"{path}: there is no such file or folder.")
        if path.is_file() and path.suffix not in DATA:
            raise BadUsage(
                f"{path}: a file to push ends in {', '.join(DATA)}; got {path.suffix!r}."
            )
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            name = file.relative_to(root).as_posix()
            if file.is_dir() or any(word.startswith(".") for word in name.split("/")):
                continue
            if leads_out(file, root):
                raise BadFile(f"{file}: a link that leads out of the folder; copy the file here.")
            if file.suffix not in DATA:
                left_out.append(name)
            elif name in files:
                raise BadUsage(f"Two parts are called {name}: push a folder that has both.")
            else:
                files[name] = file
    if not files:
        raise BadUsage(f"Nothing to push: no file that ends in {', '.join(DATA)}.")
    return files, tuple(left_out)


def _saved(value: Any, scratch: Path) -> Path:
    """The file or folder of a value, called after its kind, in a folder that is made."""
    scratch.mkdir()
    if isinstance(value, VariableAlignment):
        return value.save(scratch / "alignment")
    if isinstance(value, Record):
        return value.save(scratch / "record.json")
    if not hasattr(value, "save"):
        raise BadUsage(
            "What is pushed is scores, a circuit, a fit, a record, an alignment, another value with"
            f" save, or a path; got a {type(value).__name__}."
        )
    file = scratch / "value.safetensors"
    value.save(file)
    if not kind_of(file):
        raise BadUsage(f"A {type(value).__name__} is saved in a form of its own: push its file.")
    return file.rename(scratch / f"{_word(kind_of(file))}.safetensors")


def _word(text: str) -> str:
    """A text as one word of file names and tags."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())


def _push(
    repo: str,
    files: Mapping[str, Path],
    card: str,
    left_out: tuple[str, ...],
    private: bool,
    revision: str | None,
) -> Pushed:
    try:
        from huggingface_hub import CommitOperationAdd, HfApi, get_token
    except ImportError:
        raise MissingExtra("Pushing to the hub", "huggingface_hub", "hub") from None
    if not get_token():
        raise BadUsage("Pushing needs a token of the hub: `hf auth login`, or HF_TOKEN.")
    api = HfApi(library_name="mechassay", library_version=__version__)
    n = counted(len(files), "file")
    try:
        with quiet(), warnings.catch_warnings():
            # Values of examples may be parquet, which the client thinks a model has not. What it
            # uses itself, and is deprecated, is not for whoever pushes.
            warnings.filterwarnings("ignore", "It seems that you are about to commit a data file")
            warnings.simplefilter("ignore", DeprecationWarning)
            api.create_repo(repo, private=private or None, exist_ok=True)
            _check_card(repo, revision)
            commit = api.create_commit(
                repo,
                [
                    CommitOperationAdd(CARD, card.encode()),
                    *(CommitOperationAdd(name, file) for name, file in sorted(files.items())),
                ],
                commit_message=f"{n} of mechassay {__version__}",
                revision=revision,
            )
    except BadUsage:
        raise
    except Exception as error:  # Which errors the hub's clients raise is not documented.
        raise BadFile(f"{repo}: the hub did not take it ({hub_reason(error)}).") from None
    return Pushed(repo, commit.oid, str(commit.commit_url), (CARD, *sorted(files)), left_out)


def _check_card(repo: str, revision: str | None) -> None:
    """Refuse to replace a card that somebody else has written, as that of a model."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, RevisionNotFoundError

    with suppress(EntryNotFoundError, RevisionNotFoundError):
        text = Path(hf_hub_download(repo, CARD, revision=revision)).read_text("utf-8")
        # A repository that was made on the hub's pages has a card of front matter alone.
        body = text.partition("\n---")[2] if text.startswith("---") else text
        if LIBRARY not in text and body.strip():
            raise BadUsage(
                f"{repo} has a {CARD} that mechassay did not write: push to a repository of its"
                " own."
            )


# The card


def _card(repo: str, files: Mapping[str, Path], license: str) -> str:
    """Front matter, the page of the records or the cells of the boards, and how to read it back."""
    records = dict(_records(files))
    failures = [
        Failure.model_validate_json(file.read_bytes())
        for name, file in files.items()
        if "failures" in name.split("/")[:-1] and file.suffix == ".json"
    ]
    boards = _boards_of(files)
    kinds = {name: kind_of(file) for name, file in files.items() if file.suffix == ".safetensors"}
    models = {
        split_revision(record.model.name)[0]
        for record in records.values()
        if IDENTITY not in record.model.args  # A folder's path may look like a hub id.
    }
    about = {
        "library_name": "mechassay",
        **({"license": license} if license else {}),
        "tags": sorted(
            {
                *("mechassay", "mechanistic-interpretability"),
                *(f"mechassay-{record.kind}" for record in records.values()),
                *(_word(kind) for kind in kinds.values() if kind in KINDS),
                *(["leaderboard"] if boards else []),
            }
        ),
        **({"base_model": of} if (of := sorted(filter(is_hub_id, models))) else {}),
    }
    if boards is not None:
        body = _cells_text(boards)
    elif records:
        body = markdown_page(Report(list(records.values()), failures))
    else:
        body = "**Nothing was measured of this**: no record here says how good it is.\n"
    front = yaml.safe_dump(about, sort_keys=False, allow_unicode=True)
    named = [name for name, kind in kinds.items() if kind in KINDS] + list(records)
    return f"---\n{front}---\n\n{body}\n{_how_to_load(repo, files, named)}"


def _how_to_load(repo: str, files: Mapping[str, Path], named: Sequence[str]) -> str:
    """What the card says at its end."""
    whole = _whole_of(set(files))
    examples = [f'ma.from_hub("{repo}")'] if whole else []
    examples += [f'ma.from_hub("{repo}", "{name}")' for name in named[: 0 if whole else MOST_FILES]]
    left = len(named) - MOST_FILES
    more = f"# and {left:,} more files" if left > 0 and not whole else ""
    lines = ["import mechassay as ma", "", *examples, *filter(None, [more])]
    return "\n".join(
        [
            "## How to load it\n",
            f"Written by mechassay {__version__}; `pip install 'mechassay[hub]'`."
            " Files are read as data, and nothing in them is run.\n",
            *("```python", *lines, "```", ""),
        ]
    )


def _records(files: Mapping[str, Path]) -> Iterator[tuple[str, Record]]:
    """The records among files, read with all checks."""
    for name, file in files.items():
        if not _is_record(file):
            continue
        record = read_record(file)
        if is_private(record):
            raise BadFile(f"{file}: its examples are private, and a repository would show them.")
        yield name, record


def _is_record(file: Path) -> bool:
    """Whether a file is a record, or was one before somebody edited it."""
    if file.suffix != ".json":
        return False
    try:
        plain = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(plain, dict) and {"measures", "provenance", "specs"} <= plain.keys()


def _boards_of(files: Mapping[str, Path]) -> StoredBoards | None:
    """The boards that a folder holds at its root."""
    first = next((file for name, file in files.items() if name in BOARDS), None)
    return None if first is None else StoredBoards.read(first.parents[1])


def _cells_text(boards: StoredBoards) -> str:
    """How many cells there are, and the first of them."""
    cells = boards.cells
    rows = {(cell.board, cell.row) for cell in cells}
    names = ", ".join(sorted({cell.board for cell in cells}))
    texts = [
        (
            cell.row,
            *(cell.place.get(role, "") for role in ("model", "task")),
            f"{cell.column} ({cell.board})",
            interval(cell.value, cell.low, cell.high),
            "; ".join(f"{name} {value:.3g}" for name, value in cell.controls.items()),
            f"{cell.n:,}",
            ", ".join(cell.failing),
        )
        for cell in cells[:MOST_CELLS]
    ]
    headings = (
        "row",
        "model",
        "task",
        "column",
        "value [interval]",
        "controls",
        "n",
        "controls that fail",
    )
    table = TextTable.of("", headings, texts)
    more = f"\n{len(cells) - MOST_CELLS:,} more in data/.\n" if len(cells) > MOST_CELLS else ""
    first = f"Boards of {names}: {counted(len(cells), 'cell')} in {counted(len(rows), 'row')}."
    return "\n".join([first, "", *table.markdown(), more])


# Reading


def pull(repo: str, folder: str | Path, revision: str | None = None) -> Path:
    """Download the files of data of a repository into a new folder; the folder.

    Args:
        revision: a branch, tag or commit; the newest commit if None.

    Raises:
        BadUsage: no OWNER/NAME, or there is something in the folder.
        BadFile: the hub does not give it, or it has no files of data.
        MissingExtra: huggingface_hub is not installed.
    """
    _check_repo(repo)
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadUsage(f"{folder}: there is something else already.")
    with quiet():
        return HubFiles.of(repo, revision, (*DATA, CARD)).download(folder)


@checked
def from_hub(repo: str, name: str = "", *, revision: str | None = None) -> Any:
    """Read what a repository holds: scores, a circuit, a fit, a record, an alignment, a board.

    Args:
        name: of a file or folder in it; may be left out where it holds one thing.
        revision: a branch, tag or commit; the newest commit if None.

    Raises:
        BadFile: the hub does not give it, or a file is damaged, foreign or edited.
        BadUsage: several things and no name. UnknownName: no file or folder of that name, or a
            kind that is read otherwise.
        MissingExtra: huggingface_hub is not installed.
    """
    _check_repo(repo)
    with quiet():
        held = HubFiles.of(repo, revision, DATA)
        files = set(held.sizes)
        folders = {str(parent) for file in files for parent in PurePosixPath(file).parents} - {"."}
        if name:
            one_of(f"file of {repo}", name, sorted(files | folders))
        folder = cache_folder() / "hub" / repo.replace("/", "--") / held.commit
        held.download(folder, within=name)
    if name or _whole_of(files):
        return read_part(folder / name)
    parts = [file for file in sorted(files) if _is_part(folder / file)]
    if len(parts) != 1:
        some = ", ".join(parts[:MOST_FILES]) or "none that is known"
        raise BadUsage(f"{repo} holds {len(parts)} things to read, name one of them: {some}.")
    return read_part(folder / parts[0])


def _whole_of(files: Set[str]) -> bool:
    """Whether files of a folder are read as one: those of boards or an alignment."""
    return HEADER in files or bool(BOARDS & files)


def _is_part(file: Path) -> bool:
    return kind_of(file) in KINDS if file.suffix == ".safetensors" else _is_record(file)


def read_part(path: Path) -> Any:
    """What a file or folder holds, by the loader of its kind.

    Raises:
        BadFile, BadUsage, UnknownName: as of `from_hub`.
    """
    if path.is_dir():
        if (path / HEADER).is_file():
            return VariableAlignment.load(path)
        return StoredBoards.read(path)
    if path.suffix == ".json":
        return read_record(path)
    if path.suffix != ".safetensors":
        raise BadUsage(f"{path}: read are .safetensors, records (.json), alignments and boards.")
    return KINDS.load(kind_of(path) or "a file of others").load(path)
