"""Folders for MIB's circuit track: what is written is valid, and every kind of mistake is found."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.graph_files import GraphFile, read_graph_file, write_graph_file
from mechassay.circuits.methods.random import Random
from mechassay.circuits.mib_submission import (
    MIB,
    Track,
    TrackModel,
    validate_submission,
    write_submission,
)
from mechassay.circuits.scores import EdgeScores, NeuronScores, NodeScores
from mechassay.errors import BadUsage, GraphMismatch, UnknownName
from mechassay.models.graph import Graph
from mechassay.utils.files import Problem

# 46 and 23 edges.
BIG, SMALL = Graph(2, 2), Graph(1, 4)
TRACK = Track(
    {"gpt2": TrackModel(BIG, 8, ("ioi",)), "llama3": TrackModel(SMALL, 4, ("ioi", "mcqa"))},
    sizes=(0.1, 0.25, 0.5),
)
SCORES = {
    ("ioi", "gpt2"): Random(seed=1).draw(BIG),
    ("ioi", "llama3"): Random(seed=2).draw(SMALL),
    ("mcqa", "llama3"): Random(seed=3).draw(SMALL),
}


def test_the_track_is_mibs() -> None:
    edges = {name: model.graph.n_edges for name, model in MIB.models.items()}
    assert edges == {
        "gpt2": 32_491,
        "qwen2.5": 179_749,
        "gemma2": 74_218,
        "llama3": 1_592_881,
        "interpbench": 1_108,
    }
    # MIB's table has 12 columns, and one for InterpBench.
    assert len(MIB.folders) == 13
    assert MIB.folders["arc-easy_gemma2"] == ("arc-easy", "gemma2")
    assert MIB.tasks == [
        "arc-challenge",
        "arc-easy",
        "arithmetic-addition",
        "arithmetic-subtraction",
        "ioi",
        "mcqa",
    ]
    assert len(MIB.sizes) == 9


@pytest.mark.parametrize("ending", [".json", ".pt"])
@pytest.mark.parametrize("form", ["importances", "circuits"])
def test_what_is_written_is_valid(form: Any, ending: str, tmp_path: Path) -> None:
    written = write_submission(tmp_path / "s", SCORES, form, ending=ending, track=TRACK)
    (tmp_path / "s" / "README.md").write_text("What we did.")
    assert len(written) == 3 * (1 if form == "importances" else 3)
    assert all(path.suffix == ending and path.is_file() for path in written)
    assert validate_submission(tmp_path / "s", TRACK) == []


def test_circuits_are_cut_at_their_sizes(tmp_path: Path) -> None:
    write_submission(tmp_path, SCORES, "circuits", by="magnitude", track=TRACK)
    scores = SCORES["ioi", "gpt2"]
    # .1, .25 and .5 of 46 edges, rounded down.
    for name, n in (("10pct", 4), ("25pct", 11), ("50pct", 23)):
        file = read_graph_file(tmp_path / "ioi_gpt2" / f"{name}.json", BIG)
        assert (file.circuit or Circuit.empty(BIG)) == scores.top(n, by="magnitude").pruned()
        assert file.scores is None
        assert file.d_model == 8


def test_importances_are_the_scores(tmp_path: Path) -> None:
    (first, *_) = write_submission(tmp_path, SCORES, track=TRACK)
    read = read_graph_file(first).scores
    assert read is not None
    assert torch.equal(read.values.nan_to_num(9), SCORES["ioi", "gpt2"].values.nan_to_num(9))


def test_what_is_not_written(tmp_path: Path) -> None:
    scores = SCORES["ioi", "gpt2"]
    for pair, message in {("ioi", "gpt-2"): "gpt2", ("ioy", "gpt2"): "ioi"}.items():
        with pytest.raises(UnknownName, match=f"Did you mean '{message}'"):
            write_submission(tmp_path, {pair: scores}, track=TRACK)
    with pytest.raises(BadUsage, match="does not evaluate gpt2 on mcqa; it does on ioi"):
        write_submission(tmp_path, {("mcqa", "gpt2"): scores}, track=TRACK)
    with pytest.raises(GraphMismatch, match=r"ioi on llama3: .*\(46 edges\).*\(23 edges\)"):
        write_submission(tmp_path, {("ioi", "llama3"): scores}, track=TRACK)
    with pytest.raises(UnknownName, match="form of a submission"):
        write_submission(tmp_path, SCORES, "circuit", track=TRACK)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnknownName, match="ending"):
        write_submission(tmp_path, SCORES, ending=".pkl", track=TRACK)
    values = scores.values.clone()
    values[0, 0] = float("nan")
    with pytest.raises(BadUsage, match="1 of 46 edges have no score"):
        write_submission(
            tmp_path, {**SCORES, ("ioi", "gpt2"): EdgeScores(BIG, values)}, track=TRACK
        )
    assert not list(tmp_path.iterdir())
    write_submission(tmp_path, SCORES, track=TRACK)
    with pytest.raises(BadUsage, match="there is something already"):
        write_submission(tmp_path, SCORES, "circuits", track=TRACK)


# Checking. Each case changes a valid folder and names all problems that follow: (path, part of the
# message).

FIRST = "ioi_gpt2/importances.json"


def edit(path: str, change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        data = json.loads((folder / path).read_text())
        change(data)
        (folder / path).write_text(json.dumps(data))

    return apply


def every(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: [edge.update({key: value}) for edge in data["edges"].values()] and None


def cut(data: dict[str, Any]) -> None:
    data["edges"].popitem()


def rename(path: str, to: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / path).rename(folder / to)

    return apply


def remove(*paths: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        for path in paths:
            shutil.rmtree(folder / path) if (folder / path).is_dir() else (folder / path).unlink()

    return apply


def put(path: str, text: str = "x") -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)

    return apply


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("created-by-a-pickle",)


def evil(folder: Path) -> None:
    (folder / FIRST).unlink()
    torch.save({"cfg": Evil()}, folder / "ioi_gpt2/importances.pt")


def link(path: str, target: str, what: str = "x") -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        if (folder / path).is_file():
            # The file is moved to where the link will lead, so that following it would find nothing
            # wrong.
            (folder / path).rename(folder / target)
        (folder / path).symlink_to(folder / target)

    return apply


IMPORTANCES = {
    "unknown task": (
        rename("mcqa_llama3", "mcq_llama3"),
        [("mcq_llama3", "Did you mean 'mcqa'"), (".", "1 tasks (ioi)")],
    ),
    "unknown model": (
        rename("ioi_gpt2", "ioi_gpt3"),
        [("ioi_gpt3", "Did you mean 'gpt2'"), (".", "1 models (llama3)")],
    ),
    "unknown both": (put("docs/x"), [("docs", "Unknown model"), ("docs", "Unknown task")]),
    "wrong pair": (
        put("mcqa_gpt2/importances.json"),
        [("mcqa_gpt2", "does not evaluate gpt2 on mcqa")],
    ),
    "one model": (remove("ioi_gpt2"), [(".", "1 models (llama3); at least 2")]),
    "nothing": (
        remove("ioi_gpt2", "ioi_llama3", "mcqa_llama3"),
        [(".", "0 tasks (none); at least 2"), (".", "0 models (none); at least 2")],
    ),
    "extra file": (put("notes.txt"), [("notes.txt", "an extra file")]),
    "extra file inside": (put("ioi_gpt2/run.py"), [("ioi_gpt2/run.py", "an extra file")]),
    "extra folder inside": (put("ioi_gpt2/x.json/y"), [("ioi_gpt2/x.json", "an extra folder")]),
    "no graph file": (remove(FIRST), [("ioi_gpt2", "no graph file")]),
    "NaN": (
        edit(FIRST, lambda d: d["edges"]["input->m0"].update(score=float("nan"))),
        [(FIRST, "not finite: input->m0")],
    ),
    "all equal": (
        edit(FIRST, every("score", 0.25)),
        [(FIRST, "all scores of edges are equal (0.25)")],
    ),
    "all zero": (edit(FIRST, every("score", 0)), [(FIRST, "has no scores")]),
    "unknown edge": (
        edit(FIRST, lambda d: d["edges"].update({"m9->m1": {"score": 1, "in_graph": True}})),
        [(FIRST, "m9->m1")],
    ),
    "edge without a score": (edit(FIRST, cut), [(FIRST, "1 of 46 edges have no score")]),
    "other model's graph": (
        edit(FIRST, lambda d: d["cfg"].update(n_heads=3)),
        [(FIRST, "3 heads")],
    ),
    "other width": (
        edit(FIRST, lambda d: d["cfg"].update(d_model=9)),
        [(FIRST, "d_model = 9; the model's is 8")],
    ),
    "truncated": (put(FIRST, '{"cfg": {'), [(FIRST, "not readable as JSON")]),
    "code": (evil, [("ioi_gpt2/importances.pt", "its pickle calls posix.mkdir")]),
    "file leaves": (
        link(FIRST, "../outside.json"),
        [(FIRST, "leads out"), ("ioi_gpt2", "no graph file")],
    ),
    "folder leaves": (link("arc_llama3", "../outside"), [("arc_llama3", "leads out")]),
    "link to nothing": (
        link("ioi_gpt2/a.json", "ioi_gpt2/b.json"),
        [("ioi_gpt2/a.json", "no regular file")],
    ),
    "link to itself": (
        link("ioi_gpt2/a.json", "ioi_gpt2/a.json"),
        [("ioi_gpt2/a.json", "no regular file")],
    ),
    "two files of scores": (
        lambda folder: write_graph_file(folder / "ioi_gpt2/b.pt", SCORES["ioi", "gpt2"], d_model=8),
        [("ioi_gpt2", "2 circuits; 3 are needed (10, 25, 50 % of the edges)")],
    ),
    "several at once": (
        lambda folder: (
            [
                change(folder)
                for change in (
                    put("notes.txt"),
                    edit(FIRST, every("score", 1)),
                    put("ioi_llama3/b.py"),
                )
            ]
            and None
        ),
        [(FIRST, "equal"), ("ioi_llama3/b.py", "extra"), ("notes.txt", "extra")],
    ),
}


def check(folder: Path, expected: list[tuple[str, str]]) -> None:
    problems = validate_submission(folder, TRACK)
    assert [problem.path for problem in problems] == [path for path, _ in expected], problems
    for problem, (_, part) in zip(problems, expected, strict=True):
        assert part in problem.message, problem
        assert "\n" not in problem.message


@pytest.mark.parametrize("case", IMPORTANCES)
def test_problems_of_importances(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    change, expected = IMPORTANCES[case]
    write_submission(tmp_path / "s", SCORES, track=TRACK)
    change(tmp_path / "s")
    check(tmp_path / "s", expected)
    assert not (tmp_path / "created-by-a-pickle").exists()


def full(path: str) -> Callable[[Path], None]:
    return lambda folder: write_graph_file(folder / path, circuit=Circuit.full(SMALL), d_model=4)


def copy(path: str, to: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        shutil.copyfile(folder / path, folder / to)

    return apply


def swap(folder: Path) -> None:
    """The largest size gets an empty circuit."""
    write_graph_file(
        folder / "mcqa_llama3/25pct.json",
        circuit=Circuit.from_names(SMALL, ["input->logits"]),
        d_model=4,
    )
    write_graph_file(folder / "mcqa_llama3/50pct.json", Random().draw(SMALL), d_model=4)


HERE = "mcqa_llama3"
CIRCUITS = {
    "missing": (remove(f"{HERE}/25pct.json"), [(HERE, "no circuit of 25 % of the edges (25pct)")]),
    "all but one missing": (
        remove(f"{HERE}/25pct.json", f"{HERE}/50pct.json"),
        [(HERE, "no circuit of 25 %"), (HERE, "no circuit of 50 %")],
    ),
    "twice": (
        copy(f"{HERE}/25pct.json", f"{HERE}/25.0pct.json"),
        [(HERE, "2 circuits of 25 % of the edges: 25.0pct.json, 25pct.json")],
    ),
    "too large": (
        full(f"{HERE}/50pct.json"),
        [(f"{HERE}/50pct.json", "has 23 edges, 100 % of 23; at most 50 % are allowed.")],
    ),
    "out of order": (
        swap,
        [(f"{HERE}/50pct.json", "has 0 edges, fewer than the smaller size's 25pct.json (1)")],
    ),
    "other name": (
        rename(f"{HERE}/50pct.json", f"{HERE}/half.json"),
        [(f"{HERE}/half.json", "none of the sizes"), (HERE, "no circuit of 50 %")],
    ),
    "unreadable": (put(f"{HERE}/50pct.json"), [(f"{HERE}/50pct.json", "not readable as JSON")]),
    "flags that are no booleans": (
        edit(f"{HERE}/50pct.json", every("in_graph", 1)),
        [(f"{HERE}/50pct.json", "23 in_graph of edges are not true or false")],
    ),
}


@pytest.mark.parametrize("case", CIRCUITS)
def test_problems_of_circuits(case: str, tmp_path: Path) -> None:
    change, expected = CIRCUITS[case]
    write_submission(tmp_path, SCORES, "circuits", track=TRACK)
    change(tmp_path)
    check(tmp_path, expected)


def test_circuits_with_other_names_are_taken_by_rank(tmp_path: Path) -> None:
    write_submission(tmp_path, SCORES, "circuits", track=TRACK)
    for old, new in (("10pct", "c"), ("25pct", "a"), ("50pct", "b")):
        rename(f"{HERE}/{old}.json", f"{HERE}/{new}.json")(tmp_path)
    check(tmp_path, [])
    # "a" becomes the largest, so that "b" is held to 25 %.
    full(f"{HERE}/a.json")(tmp_path)
    count = read_graph_file(tmp_path / HERE / "b.json").weighted_edge_count()
    expected = [(f"{HERE}/a.json", "at most 50 % are allowed for its rank")]
    check(
        tmp_path,
        ([(f"{HERE}/b.json", "at most 25 % are allowed for its rank")] if count > 6 else [])
        + expected,
    )
    remove(f"{HERE}/a.json")(tmp_path)
    check(tmp_path, [(HERE, "2 circuits; 3 are needed")])


def test_neurons_count_by_their_share(tmp_path: Path) -> None:
    write_submission(tmp_path, SCORES, "circuits", track=TRACK)
    neurons = torch.zeros(SMALL.n_writers, 4, dtype=torch.bool)
    neurons[:, :2] = True
    # All 23 edges at half weight are 50 %.
    GraphFile(SMALL, 4, circuit=Circuit(SMALL, SMALL.legal, neurons)).write(
        tmp_path / HERE / "50pct.json"
    )
    check(tmp_path, [])


@pytest.mark.parametrize("kind", ["node_scores", "neuron_scores"])
def test_scores_of_nodes_or_neurons_are_scores_too(kind: str, tmp_path: Path) -> None:
    write_submission(tmp_path, SCORES, track=TRACK)
    shape = (SMALL.n_writers,) if kind == "node_scores" else (SMALL.n_writers, 4)
    values: Any = {
        kind: torch.arange(SMALL.n_writers * (1 if len(shape) == 1 else 4)).float().view(shape)
    }
    GraphFile(SMALL, 4, **values).write(tmp_path / HERE / "importances.json")
    check(tmp_path, [])
    GraphFile(SMALL, 4, **{kind: values[kind] * 0 + 2}).write(tmp_path / HERE / "importances.json")
    check(tmp_path, [(f"{HERE}/importances.json", f"all scores of {kind[:-7]}s are equal (2)")])
    # MIB's evaluator keeps what has no score in every circuit.
    values[kind][0] = torch.nan
    GraphFile(SMALL, 4, **values).write(tmp_path / HERE / "importances.json")
    check(tmp_path, [])
    values[kind][2] = torch.nan
    GraphFile(SMALL, 4, **values).write(tmp_path / HERE / "importances.json")
    n, total = (1, SMALL.n_writers) if len(shape) == 1 else (4, 4 * SMALL.n_writers)
    says = f"{n} of {total} {kind[:-7]}s have no score; only the input may have none"
    check(tmp_path, [(f"{HERE}/importances.json", says)])


def test_no_folder(tmp_path: Path) -> None:
    assert validate_submission(tmp_path / "none") == [
        Problem(".", f"there is no such folder: {tmp_path / 'none'}.")
    ]


# Files that the board skips, and files of nodes


def test_a_file_that_the_board_skips_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_submission(tmp_path, SCORES, track=TRACK)
    assert validate_submission(tmp_path, TRACK) == []
    largest = max(file.stat().st_size for file in tmp_path.rglob("*.json"))
    monkeypatch.setattr("mechassay.circuits.mib_submission.LARGEST_FILE", largest - 1)
    found = validate_submission(tmp_path, TRACK)
    assert [(problem.path, problem.warning) for problem in found] == [
        ("ioi_gpt2/importances.json", True)
    ]
    assert "the board skips files of more than" in found[0].message


def test_scores_of_nodes_and_neurons_are_written_without_edges(tmp_path: Path) -> None:
    nodes = NodeScores(SMALL, torch.arange(1.0, SMALL.n_writers + 1))
    neurons = NeuronScores(BIG, torch.arange(8.0 * BIG.n_writers).reshape(-1, 8))
    scores = {("ioi", "gpt2"): neurons, ("ioi", "llama3"): nodes, ("mcqa", "llama3"): nodes}
    written = write_submission(tmp_path, scores, track=TRACK)
    assert validate_submission(tmp_path, TRACK) == []
    assert [json.loads(file.read_text())["edges"] for file in written] == [{}, {}, {}]
    stored = [read_graph_file(file) for file in written]
    assert stored[0].neuron_scores is not None and stored[1].node_scores is not None
    assert torch.equal(stored[0].neuron_scores, neurons.values)
    assert torch.equal(stored[1].node_scores, nodes.values)
    assert stored[1].scores is None and stored[1].circuit is None


@pytest.mark.parametrize(("form", "ending"), [("circuits", ".json"), ("importances", ".pt")])
def test_scores_of_nodes_have_one_form(tmp_path: Path, form: Any, ending: str) -> None:
    nodes = NodeScores(SMALL, torch.ones(SMALL.n_writers))
    with pytest.raises(BadUsage, match="scores of nodes are written as importances in .json"):
        write_submission(tmp_path, {("ioi", "llama3"): nodes}, form, ending=ending, track=TRACK)
    assert not list(tmp_path.iterdir())
