"""Every code block of the documentation and the readme works as a reader sees it.

Python blocks of a page run in order in one namespace, in an empty folder. Blocks under the comment
`<!-- real -->` load a model that is large, and run only where it is fetched; those under
`<!-- hub -->` run against a stand-in of the hub.

By default, pages that compute with smollm2-135m (`COSTLY`) get a tiny random model in its
place, which can do the IOI task's text; what they print is another thing, what they do is the
same. The slow tests run them with the model itself, on fewer pairs.

A block that includes a file of examples/ is not run here: tests/docs/test_examples.py tests it.

Of bash blocks, every `mechassay` command is looked up: its subcommands and options must exist.
The slow tests run those whose models and files are at hand, on few pairs.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import mechassay as ma
from helpers import tiny_models
from helpers.hub_stand_in import hub_on_loopback, point_at
from mechassay.cli.main import app_for
from mechassay.models.model import make_model
from mechassay.models.weight_files import is_fetched

ROOT = Path(__file__).parents[2]
# Pages made from code have no blocks of their own; see tests/docs/test_site.py.
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md"] + [
    page for page in sorted((ROOT / "docs").rglob("*.md")) if "generated" not in page.parts
]
COSTLY = [
    ROOT / "docs" / f"{name}.md"
    for name in ("circuits", "coming-from", "interchange", "tasks/index")
]
INCLUDED = "--8<--"
LONG = {"areas.md", "adversarial-search.md"}
MARKS = {"real", "hub"}
REAL_MODEL = "smollm2-135m"

_BLOCK = re.compile(
    r"(?P<marks>(?:<!--[^\n]*-->[ \t]*\n\s*)*)^(?P<indent>["
    r" \t]*)```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^(?P=indent)```",
    re.M | re.S,
)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, the comments before it,
    its code, and the line it begins on.
    """

    language: str
    marks: frozenset[str]
    code: str
    line: int


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page that name a language."""
    found: list[Block] = []
    for match in _BLOCK.finditer(text):
        marks = (
            frozenset(mark.strip() for mark in re.findall(r"<!--(.*?)-->", match["marks"])) & MARKS
        )
        code = re.sub(rf"^{match['indent']}", "", match["code"], flags=re.M)
        found.append(
            Block(match["language"], marks, code, text.count("\n", 0, match.start("code")))
        )
    return found


def run(page: Path, wanted: list[Block], names: dict[str, Any], limit: int | None = None) -> None:
    """Execute blocks in order, on `limit` pairs where they say another limit; a failure shows the
    page and its line.
    """
    for block in wanted:
        text = block.code if limit is None else re.sub(r"\blimit=\d+", f"limit={limit}", block.code)
        code = compile("\n" * block.line + text, str(page), "exec", dont_inherit=True)
        exec(code, names)


def python_blocks(page: Path, *, real: bool) -> list[Block]:
    return [
        block
        for block in blocks(page.read_text("utf-8"))
        if block.language == "python"
        and ("real" in block.marks) == real
        and "hub" not in block.marks
        and not block.code.startswith(INCLUDED)
    ]


def with_python(*, real: bool) -> list[Any]:
    return [
        pytest.param(
            page,
            id=str(page.relative_to(ROOT)),
            # A real model takes long: by default on the first page that people read.
            marks=[pytest.mark.slow] if page.name in LONG or (real and page != PAGES[0]) else [],
        )
        for page in PAGES
        if python_blocks(page, real=real)
    ]


@pytest.mark.slow
def test_the_code_that_needs_the_hub_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = ROOT / "docs" / "hub.md"
    wanted = [block for block in blocks(page.read_text("utf-8")) if "hub" in block.marks]
    monkeypatch.chdir(tmp_path)
    with hub_on_loopback() as hub:
        point_at(hub, monkeypatch, tmp_path)
        run(page, wanted, {})
    assert hub.cards


@pytest.mark.few(4)
@pytest.mark.parametrize("page", with_python(real=False))
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    load = ma.load_model

    def tiny_or_load(source: Any, **settings: Any) -> ma.Model:
        if source == REAL_MODEL:
            return make_model(*tiny_models.with_words(), name="tiny")
        return load(source, **settings)

    if page in COSTLY:
        monkeypatch.setattr(ma, "load_model", tiny_or_load)
    if page.parent.name == "your-own":  # Its package is installed by then.
        monkeypatch.syspath_prepend(str(ROOT / "examples" / page.stem / "src"))
    run(page, python_blocks(page, real=False), {})


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.skipif(
    not is_fetched(REAL_MODEL),
    reason=f"{REAL_MODEL} is not fetched: mechassay models fetch {REAL_MODEL}",
)
@pytest.mark.parametrize(
    "page",
    [
        *with_python(real=True),
        *(pytest.param(page, id=str(page.relative_to(ROOT))) for page in COSTLY),
    ],
)
def test_the_code_of_a_page_runs_on_a_real_model(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    limit = None if request.config.getoption("--all") and page not in COSTLY else 3
    real = python_blocks(page, real=True)
    run(page, real or python_blocks(page, real=False), {}, limit)


# --- commands
# ----------------------------------------------------------------------------------------


def commands(page: Path) -> list[str]:
    """The `mechassay` commands in a page's bash blocks, continued lines joined."""
    text = "\n".join(
        block.code for block in blocks(page.read_text("utf-8")) if block.language == "bash"
    )
    lines = [
        re.sub(r"^\s*(?:\w+=\S+ )*", "", line)
        for line in re.sub(r"\\\n\s*", " ", text).splitlines()
    ]
    return [line for line in lines if line.startswith("mechassay ")]


def mistakes(line: str) -> str | None:
    """What is wrong with a command, or None: unknown subcommands and options,
    missing and superfluous arguments.
    """
    words = shlex.split(line, comments=True)[1:]
    if words[0] == "plan":  # The rest is a command of its own.
        words = [word for word in words[1:] if word != "--json"]
    command: Any = get_command(app_for(words))
    positional: list[str] = []
    while words:
        word = words.pop(0)
        if word.startswith("-") and word != "-":
            name, equals, _ = word.partition("=")
            options = {
                spelling: option
                for option in command.params
                for spelling in (*option.opts, *option.secondary_opts)
                if spelling[0] == "-"
            }
            if name == "--help":
                continue
            if name not in options:
                return f"{command.name} has no option {name}"
            if not equals and not getattr(options[name], "is_flag", False):
                if not words:
                    return f"{name} needs a value"
                words.pop(0)
        elif hasattr(
            command, "commands"
        ):  # a group; typer brings its own click, so that its classes are not click's
            if word not in command.commands:
                return f"{command.name or 'mechassay'} has no command {word}"
            command = command.commands[word]
        else:
            positional.append(word)
    slots = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    if len(positional) < sum(slot.required for slot in slots):
        return f"{command.name} needs {len(slots)} arguments"
    if len(positional) > len(slots) and all(slot.nargs == 1 for slot in slots):
        return f"{command.name} takes no {positional[-1]!r}"
    return None


@pytest.mark.slow
def test_the_commands_of_the_documentation_exist() -> None:
    lines = sorted({line for page in PAGES for line in commands(page)})
    wrong = {line: mistake for line in lines if (mistake := mistakes(line)) is not None}
    assert lines and not wrong


FEW = {
    "--limit": "4",
    "--train-limit": "4",
    "--validation-limit": "4",
    "--n-clean": "8",
    "--n-corrupted": "8",
    "--grid": "4",
    "--left-out": "2",
}
"""On how few examples commands are run here."""


def on_few(line: str) -> list[str]:
    """The words of a command, on few examples."""
    words = shlex.split(line, comments=True)[1:]
    command, left = get_command(app_for(words)), list(words)
    while left and left[0] in getattr(command, "commands", {}):
        command = command.commands[left.pop(0)]
    takes = {spelling for option in command.params for spelling in option.opts}
    for option in FEW.keys() & takes:
        if option in words:
            words[words.index(option) + 1] = FEW[option]
        elif option not in ("--grid", "--left-out"):
            words += [option, FEW[option]]
    return words


NOT_RUN = {
    r"models fetch|saes fetch|hub push|hub pull|arxiv:|https?://": "needs the network",
    r"gpt2|EleutherAI|microsoft|gemma|attn-only|mib-worker": "needs a model of the hub",
    r"/shared|--judge|check-change|--steps per-crit": "needs a cluster, a server or a history",
    r"eap-corrupted|agreement:| agreement |build results": "needs what the page adds",
    r"seeds\.txt|submission|drawn/| alignment|saes/|runs/paper": "needs a file of the reader",
    r"\.pdf|ann\.json|run1|voted|ioi\.json|judgments\.json|es/scores": "needs a file of the reader",
    r"^mechassay assay.*(assay|50)$|-m truth |--model truth ": "takes long",
    r"saes train|train -o|truth train|mine": "takes long",
    r"batchtopk|--known": "needs a file of the reader",
    r"table-2b|--steps 400|null EX2|run all|/cmd ": "takes long",
    r"runs/board|--task all|licensing|--paper": "takes long",
}
"""Commands that are looked up only, and why."""


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.skipif(not is_fetched(REAL_MODEL), reason=f"{REAL_MODEL} is not fetched")
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES if commands(page)],
)
def test_the_commands_of_a_page_run_one_after_another(page: Path, tmp_path: Path) -> None:
    for folder in ("examples", "docs"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "claim.yaml").symlink_to(ROOT / "examples/claims/ioi.yaml")
    for block in python_blocks(page, real=False):
        if '.open("w")' in block.code:  # It makes the file that the commands read.
            subprocess.run([sys.executable, "-c", block.code], cwd=tmp_path, check=True)
    lines = [
        line
        for line in dict.fromkeys(commands(page))
        if not any(re.search(reason, line) for reason in NOT_RUN)
    ]
    failed: dict[str, str] = {}
    for line in lines:
        program = [sys.executable, "-m", "mechassay", *on_few(line)]
        ended = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
        if ended.returncode:
            failed[line] = ended.stderr.strip().splitlines()[-1]
    assert not failed
    assert lines or page != PAGES[0]


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.skipif(not is_fetched(REAL_MODEL), reason=f"{REAL_MODEL} is not fetched")
def test_the_commands_on_own_pairs_run_as_printed(tmp_path: Path) -> None:
    page = ROOT / "docs" / "tasks" / "your-own.md"
    make = next(x for x in python_blocks(page, real=False) if '.open("w")' in x.code)
    subprocess.run([sys.executable, "-c", make.code], cwd=tmp_path, check=True)
    lines = commands(page)
    assert [line.split()[1:3] for line in lines] == [
        ["tasks", "check"],
        ["tasks", "show"],
        ["circuits", "run"],
    ]
    printed = [
        subprocess.run(
            [sys.executable, "-m", "mechassay", *shlex.split(line)[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for line in lines
    ]
    # Half of the pairs have prompts of unequal length.
    rows = [re.findall(r"\d+", line)[:4] for line in printed[0].splitlines() if "│" in line]
    assert rows == [
        ["240", "120", "60", "120"],
        ["80", "40", "20", "40"],
        ["80", "40", "20", "40"],
        ["400", "200", "100", "200"],
    ]
    assert "stands before the" in printed[1]
    (circuits,) = tmp_path.glob("runs/circuits-*")
    data = ma.open_run(circuits).records[0].data
    kept = {role: own.kept for role, own in data.items()}
    assert kept == {"train": 100, "validation": 40, "test": 40}


@pytest.mark.guard
def test_the_readme_shows_what_its_first_run_prints(tmp_path: Path) -> None:
    """Numbers may differ in the last digits from CPU to CPU."""
    text = PAGES[0].read_text("utf-8")
    [command] = [line for line in text.splitlines() if line.startswith("mechassay circuits run")]
    shown = text.partition(command)[2].partition("```text\n")[2].partition("```")[0]
    program = [sys.executable, "-m", "mechassay", *shlex.split(command)[1:]]
    screen = {**os.environ, "COLUMNS": "80"}
    printed = subprocess.run(
        program, cwd=tmp_path, capture_output=True, text=True, check=True, env=screen
    )
    conclusion, _, table = printed.stdout.partition("┏")
    lines = [x for x in conclusion.splitlines() if x]
    lines += [x for x in table.splitlines() if x.startswith(("┃", "│", "Report"))]
    number = r"\d+\.?\d*"
    assert re.sub(number, "0", shown).splitlines() == [re.sub(number, "0", x) for x in lines]
    numbers = [
        [float(word) for word in re.findall(number, text)] for text in (shown, "\n".join(lines))
    ]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.005)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("mechassay circuit run", "no command circuit"),
        ("mechassay circuits ruin", "no command ruin"),
        ("mechassay circuits run --modle x", "no option --modle"),
        ("mechassay circuits run --model", "needs a value"),
        ("mechassay models fetch", "needs 1 arguments"),
        ("mechassay models fetch a b", "takes no 'b'"),
    ],
)
def test_a_wrong_command_is_found(line: str, wrong: str) -> None:
    assert wrong in (mistakes(line) or "")


# --- the readers of pages
# ----------------------------------------------------------------------------


def test_blocks_are_found_with_their_marks_and_lines() -> None:
    text = """one

<!-- real -->
<!-- other -->
```python
a = 1
```

- item
  ```bash
  mechassay x \\
    -y
  ```
```
plain
```
"""
    assert blocks(text) == [
        Block("python", frozenset({"real"}), "a = 1\n", 5),
        Block("bash", frozenset(), "mechassay x \\\n  -y\n", 10),
    ]


def test_the_documentation_has_code() -> None:
    assert sum(len(python_blocks(page, real=False)) for page in PAGES) >= 10
    assert sum(len(commands(page)) for page in PAGES) >= 8
