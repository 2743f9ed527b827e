"""Cases with known verdicts: what each kind of page has to say of perfect, worthless, tiny and
deceptive runs.

The model is a trained ground truth of 262 edges, whose circuit of seven edges does the task, under
another name, so that the run does not know it. Good cases must earn their sentence: "No verdict" of
a good case is as wrong as a verdict on a worthless one.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from markupsafe import escape
from transformers import AutoModelForCausalLM

import mechassay as ma
from mechassay.circuits.scores import EdgeScores
from mechassay.cli.main import main
from mechassay.models.ability import ability_of
from mechassay.models.model import Model, make_model
from mechassay.prompts.independence import apart
from mechassay.prompts.pairs import Example, Prompt
from mechassay.results.page import Report
from mechassay.results.preconditions import task as task_precondition
from mechassay.results.preconditions import task_of
from mechassay.results.verdict import Standing, Verdict
from mechassay.tasks.accuracy import ORIGINAL, task_accuracy
from mechassay.utils.display import SILENT

TRUTH = "truth-ioi-trained"
SPLITS = ("train", "validation", "test")
N = 24
"""Pairs of each split."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """The model, its pairs as rows of a file, and scores that exact patching found on them."""

    model: Model
    rows: Sequence[Row]
    scores: EdgeScores
    folder: Path

    def file(self, name: str, rows: Sequence[Row]) -> str:
        path = self.folder / f"{name}.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
        return str(path)

    def few(self, n: int) -> list[Row]:
        return [row for split in SPLITS for row in self.of(split)[:n]]

    def of(self, split: str) -> list[Row]:
        return [row for row in self.rows if row["split"] == split]

    def scored(self, name: str, values: torch.Tensor, **about: Any) -> str:
        path = self.folder / f"{name}.safetensors"
        EdgeScores(self.model.graph, values, about).save(path)
        return str(path)

    @property
    def legal(self) -> torch.Tensor:
        """0 where there is an edge."""
        legal = self.model.graph.legal
        return torch.where(legal, torch.zeros(legal.shape), torch.nan)


def changed(rows: Iterable[Row], **fields: Callable[[Row], Any]) -> list[Row]:
    return [{**row, **{name: make(row) for name, make in fields.items()}} for row in rows]


FILLERS = ("so", "then", "and", ",", ".")


def with_other_filler(row: Row) -> str:
    """The clean prompt with a comma for a full stop, or the other way, between fillers."""
    words = row["clean"].split(" ")
    place = between_fillers(row)
    assert place is not None
    words[place] = {",": ".", ".": ","}[words[place]]
    return " ".join(words)


def between_fillers(row: Row) -> int | None:
    """A place of a comma or a full stop that has fillers on both sides; None if there is none."""
    words = row["clean"].split(" ")
    places = (n for n in range(2, len(words) - 2) if set(words[n - 2 : n + 3]) <= set(FILLERS))
    return next((n for n in places if words[n] in ",."), None)


def report(
    subject: Subject,
    task: str,
    tmp_path: Path,
    *methods: str,
    scores: Sequence[str] = (),
    model: Model | None = None,
    **options: Any,
) -> Report:
    """A run of circuits with a page. Page, tables, record and printed result begin alike."""
    own = model or subject.model
    experiment = ma.CircuitsExperiment(
        (own.name,),
        (task,),
        methods if methods or scores else ("exact",),
        scores=tuple(scores),
        **{"limit": N, "train_limit": N, **options},
    )
    made = ma.run(experiment, tmp_path / "run", models={own.name: own}, progress=SILENT)
    if not made.records:
        return made
    first = made.answers[0]
    if experiment.curve:
        assert (tmp_path / "run" / "tables.md").read_text("utf-8").splitlines()[0] == first
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert escape(first) in page and str(made).startswith(first)
    if len(made.records) == 1:
        (file,) = (tmp_path / "run" / "records").rglob("*.json")
        assert json.loads(file.read_text("utf-8"))["conclusion"] == first
    return made


def rows_of(n: int) -> list[Row]:
    """So many rows of each split of the truth's task."""
    return [
        {
            "clean": pair.clean,
            "counterfactual": pair.counterfactual,
            "answer": list(pair.answers),
            "foil": list(pair.foils),
            "split": split,
        }
        for split in SPLITS
        for pair in ma.load_task(TRUTH).pairs(split, limit=n)
    ]


def quiet() -> list[Row]:
    """Rows with a word between fillers."""
    return [row for row in rows_of(300) if between_fillers(row) is not None]


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    truth, task = ma.load_model(TRUTH), ma.load_task(TRUTH)
    model = make_model(truth.hf, truth.tokenizer, name="mine")
    rows = rows_of(N)
    scores = ma.load_method("exact").score(model, task.pairs("train", model, limit=N))
    assert isinstance(scores, EdgeScores)
    return Subject(model, rows, scores, tmp_path_factory.mktemp("files"))


def untrained(subject: Subject, seed: int = 0) -> Model:
    """The same architecture with random weights."""
    torch.manual_seed(seed)
    hf = AutoModelForCausalLM.from_config(subject.model.hf.config).eval()
    return make_model(hf, subject.model.tokenizer, name="untrained")


def zeros(subject: Subject) -> Model:
    """The same architecture with weights of 0."""
    zero = untrained(subject)
    with torch.no_grad():
        for parameter in zero.hf.parameters():
            parameter.zero_()
    return make_model(zero.hf, subject.model.tokenizer, name="zero")


KEEPS = "'s circuits keep at least 90\u00a0% of what ablation changes from"


# --- good cases


@pytest.mark.parametrize("method", ["exact", "eap-ig-inputs"])
def test_a_perfect_circuit_earns_its_sentence(
    subject: Subject, tmp_path: Path, method: str
) -> None:
    made = report(subject, subject.file("good", subject.rows), tmp_path, method)
    assert made.answers[0].startswith(f"{method}{KEEPS}")
    assert f"on {N} test pairs" in made.answers[0]
    assert made.records[0].verdict == Verdict.YES


def test_a_ranking_whose_largest_circuit_alone_holds_says_so(
    subject: Subject, tmp_path: Path
) -> None:
    """EAP on so few pairs puts some of the seven edges behind many others."""
    made = report(subject, subject.file("good", subject.rows), tmp_path, "eap")
    assert made.answers[0].startswith(
        "Of the circuits cut from the ranking of eap (9 sizes, by magnitude) only that of the"
        " largest size, 131 edges (50\u00a0%), keeps at least 90\u00a0%"
    )
    assert made.records[0].verdict == Verdict.YES


def test_twenty_pairs_are_enough_and_nineteen_are_not(subject: Subject, tmp_path: Path) -> None:
    file = subject.file("twenty", subject.few(20))
    made = report(subject, file, tmp_path / "20", limit=20, train_limit=20)
    assert made.answers[0].startswith(f"exact{KEEPS}")
    file = subject.file("nineteen", subject.few(19))
    made = report(subject, file, tmp_path / "19", limit=19, train_limit=19)
    assert made.answers == [
        "No verdict: only 19 independent test pairs of nineteen.jsonl, fewer than 20. The numbers"
        " hold for these pairs; use more prompts."
    ]


def test_a_hundred_own_pairs_without_a_split_column(subject: Subject, tmp_path: Path) -> None:
    rows = [row for row in rows_of(100) if row["split"] == "train"]
    file = subject.file("hundred", [{k: x for k, x in row.items() if k != "split"} for row in rows])
    made = report(subject, file, tmp_path, limit=100, train_limit=100)
    assert made.answers[0].startswith(f"exact{KEEPS}") and "on 20 test pairs" in made.answers[0]


def test_the_terminal_begins_like_the_page(
    subject: Subject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run, and of an evaluation of one size without a curve."""
    folder, file = tmp_path / "model", subject.file("good", subject.rows)
    subject.model.hf.save_pretrained(folder)
    assert subject.model.tokenizer is not None
    subject.model.tokenizer.save_pretrained(folder)
    scores = subject.scored("given", subject.scores.values, **subject.scores.provenance)
    few = ("-m", str(folder), "-t", file, "--limit", str(N))
    metric = ("--metric", "completeness:size=7")
    commands = {
        "run": ("run", *few, "--train-limit", str(N), "--method", "eap"),
        "one": ("evaluate", scores, *few, "--transfer", "--no-curve", *metric),
    }
    for name, words in commands.items():
        with pytest.raises(SystemExit) as done:
            main(["circuits", *words, "-o", str(tmp_path / name)])
        assert done.value.code == 0
        printed = capsys.readouterr().out
        conclusion = ma.open_run(tmp_path / name).conclusion
        assert " ".join(printed.split()).startswith(" ".join(conclusion.split()))


def test_two_rankings_and_a_copy(subject: Subject, tmp_path: Path) -> None:
    own, noise = subject.scores.values, torch.Generator().manual_seed(0)
    about = dict(subject.scores.provenance)
    largest = float(own.nan_to_num().abs().max())
    files = [
        subject.scored("one", own, **about),
        subject.scored(
            "copy", own + 1e-6 * largest * torch.randn(own.shape, generator=noise), **about
        ),
    ]
    task = subject.file("good", subject.rows)
    made = report(subject, task, tmp_path / "copies", scores=files)
    assert made.answers[0].startswith(
        f"one and copy have the same scores to a thousandth and count as one method. one{KEEPS}"
    )
    made = report(subject, task, tmp_path / "two", "exact", "eap")
    assert made.answers[0].startswith(f"exact{KEEPS}")


def test_a_few_scored_edges_are_a_ranking(subject: Subject, tmp_path: Path) -> None:
    own = subject.scores.values
    largest = own.nan_to_num().abs().flatten().argsort(descending=True)[:10]
    values = subject.legal.flatten()
    values[largest] = own.flatten()[largest]
    file = subject.scored("ten", values.view_as(own), **subject.scores.provenance)
    made = report(subject, subject.file("good", subject.rows), tmp_path, scores=[file])
    assert made.answers[0].startswith(f"ten{KEEPS}")


def test_one_counterfactual_for_all_is_a_pool(subject: Subject, tmp_path: Path) -> None:
    """The pairs are as many as their clean prompts, and the headline says so."""
    rows: list[Row] = []
    for split in SPLITS:
        own = [row for row in rows_of(100) if row["split"] == split]
        other = own[0]
        names = {*other["answer"], *other["foil"]}
        fit = [row for row in own if not names & {*row["answer"], *row["foil"]}]
        rows += [{**row, "counterfactual": other["counterfactual"]} for row in fit[:N]]
    made = report(subject, subject.file("pool", rows), tmp_path)
    assert made.records[0].n == N
    assert made.answers[0].startswith(
        f"{N} of {N} pairs share counterfactuals and count as independent by their clean prompts."
    )


def test_scores_without_origin_say_so_in_the_headline(subject: Subject, tmp_path: Path) -> None:
    file = subject.scored("unknown", subject.scores.values)
    made = report(subject, subject.file("good", subject.rows), tmp_path, scores=[file])
    assert made.answers[0].startswith(f"unknown{KEEPS}")
    assert made.answers[0].endswith(
        "The file does not say which pairs the scores of unknown were found on. If these test pairs"
        " are among them, the numbers are too good."
    )


# --- worthless and deceptive cases


def test_exchanged_answers_and_foils(subject: Subject, tmp_path: Path) -> None:
    rows = changed(subject.rows, answer=lambda row: row["foil"], foil=lambda row: row["answer"])
    made = report(subject, subject.file("exchanged", rows), tmp_path)
    assert made.answers == [
        f"No verdict: mine prefers the foil in {N} of {N} pairs. Are answers and foils exchanged?"
    ]


def test_counterfactuals_with_the_same_answer(subject: Subject, tmp_path: Path) -> None:
    rows = changed(quiet(), counterfactual=with_other_filler)
    made = report(subject, subject.file("same", rows), tmp_path)
    first = "Nothing to explain: the ablation changes nothing: m(N) − m(0) = "
    assert made.answers[0].startswith(first) and len(made.answers) == 1


def test_three_prompts_in_many_spellings_are_three(subject: Subject, tmp_path: Path) -> None:
    three, rows = subject.of("test")[:3], list[Row]()
    for number, split in enumerate(s for s in SPLITS for _ in range(N)):
        row, spaces = three[number % 3], " " * (2 + number)
        prompts = ("clean", "counterfactual")
        texts = {name: row[name].replace(" ", spaces, 1) for name in prompts}
        rows.append({**row, **texts, "split": split})
    made = report(subject, subject.file("spaces", rows), tmp_path)
    assert made.answers[0].startswith(
        f"No verdict: the {N} test pairs of spaces.jsonl are 3 different prompts once tokenized,"
        " fewer than 20."
    )


def test_one_pair_with_all_of_the_effect(subject: Subject, tmp_path: Path) -> None:
    rows, many = list[Row](), quiet()
    for split in SPLITS:
        first, *others = [row for row in many if row["split"] == split][:N]
        rows += [first, *changed(others, counterfactual=with_other_filler)]
    made = report(subject, subject.file("one pair", rows), tmp_path)
    assert made.answers[0].startswith("No verdict: one group of pairs has ")


def test_training_pairs_that_measure_the_circuit(subject: Subject, tmp_path: Path) -> None:
    """Spelled otherwise, so that the file itself is not refused."""
    rows = [row for row in subject.rows if row["split"] != "test"]
    prompts = ("clean", "counterfactual")
    for row in subject.of("train"):
        texts = {name: row[name].replace(" ", "  ", 1) for name in prompts}
        rows.append({**row, **texts, "split": "test"})
    made = report(subject, subject.file("leaked", rows), tmp_path)
    assert made.answers[0].startswith(
        f"No verdict: {N} of the {N} test pairs have a prompt of the training pairs"
    )


def test_scores_of_the_test_pairs(subject: Subject, tmp_path: Path) -> None:
    task = subject.file("good", subject.rows)
    batch = subject.model.batch(ma.load_task(task).pairs("test", subject.model))
    about = {**subject.scores.provenance, "prompts": list(batch.prompt_hashes())}
    file = subject.scored("peeked", subject.scores.values, **about)
    made = report(subject, task, tmp_path, scores=[file])
    assert made.answers == [
        f"No verdict: {N} of the {N} test pairs are among the pairs that the scores of peeked were"
        " found on. Evaluate on other pairs."
    ]


def test_scores_that_rank_nothing(subject: Subject, tmp_path: Path) -> None:
    task, about = subject.file("good", subject.rows), dict(subject.scores.provenance)
    equal = subject.scored("equal", subject.legal + 1, **about)
    made = report(subject, task, tmp_path / "equal", scores=[equal])
    assert made.answers[0].startswith("No verdict: equal ranks nothing: all 262 scores are equal")
    one_less = subject.legal + 1
    one_less[tuple(subject.model.graph.legal.nonzero()[5].tolist())] = 0
    whole = subject.scored("whole", one_less, **about)
    made = report(subject, task, tmp_path / "curve", scores=[whole])
    assert made.answers[0].startswith("No verdict: whole decides no circuit: at all ")
    made = report(
        subject,
        task,
        tmp_path / "size",
        scores=[whole],
        curve=False,
        metrics=("completeness:size=261",),
    )
    assert made.answers[0].startswith(
        "Not distinguishable from random circuits of this size: whole's circuit of 261 of 262 edges"
    )
    # Beside a ranking, the worthless one is left out and the page says why.
    made = report(subject, task, tmp_path / "both", "exact", scores=[equal])
    assert made.answers[0].startswith(f"exact{KEEPS}")
    assert made.answers[1].startswith("equal ranks nothing")


def test_weights_that_do_nothing(subject: Subject, tmp_path: Path) -> None:
    task = subject.file("good", subject.rows)
    made = report(subject, task, tmp_path / "random", model=untrained(subject))
    assert made.answers[0].startswith("No verdict: untrained is not shown to do good.jsonl.")
    made = report(subject, task, tmp_path / "zero", model=zeros(subject))
    assert made.answers == [
        f"Nothing to explain: zero prefers neither answers nor foils: they tie in {N} of {N} pairs."
    ]


def test_pairs_that_were_chosen_because_the_model_is_right(
    subject: Subject, tmp_path: Path
) -> None:
    """Ability is that of all pairs: random weights are right on all that `keep` leaves."""
    task = subject.file("many", rows_of(300))
    made = report(subject, task, tmp_path, model=untrained(subject, 3), keep="base")
    (record,) = made.records
    assert record.task.args["keep"] == "base" and record.n < N
    assert task_precondition(record).standing is Standing.NOT_MET


# --- the model does the task


def _prompt(word: str, draw: random.Random) -> str:
    words = [draw.choice(["Bob", "Cid", "Dan", "Eve", "so", "then", "and"]) for _ in range(9)]
    return " ".join([*words[:3], word, *words[4:]]) + " to"


def _one_word(share: float, n: int = 100) -> list[ma.Pair]:
    """Pairs whose answer is the fourth word: "Ann" in a share of them."""
    draw, pairs = random.Random(7), list[ma.Pair]()
    for number in range(n):
        words = ("Ann", "Bob") if draw.random() < share else ("Bob", "Ann")
        clean, other = (_prompt(word, draw) for word in words)
        answer, foil = (f" {word}" for word in words)
        pairs.append(
            ma.Pair(
                id=str(number), clean=clean, counterfactual=other, answers=(answer,), foils=(foil,)
            )
        )
    return pairs


@pytest.mark.parametrize("kind", ["ioi", "half", "most", "all"])
def test_random_weights_hardly_ever_do_a_task(subject: Subject, kind: str) -> None:
    """At most 2 of 40 models may, on the truth's own task and where one of two words decides the
    answer: in half of the pairs, most, or all "Ann".
    """
    n_models = 40 if kind == "half" else 12
    if kind == "ioi":
        pairs: Any = ma.load_task(TRUTH).pairs("test", subject.model, limit=100)
    else:
        pairs = _one_word({"half": 0.5, "most": 0.8, "all": 1.0}[kind])
    batch = apart(subject.model.batch(pairs))[0]
    names = Counter(
        task_of(ability_of(untrained(subject, 2000 + seed), batch).table()).name
        for seed in range(n_models)
    )
    assert names["met"] <= 2 * n_models // 40


@pytest.mark.parametrize("truth", [TRUTH, "truth-mcqa-trained", "truth-greater-than-trained"])
def test_perfect_models_do_their_task_on_twenty_pairs_and_more(truth: str) -> None:
    model, task = ma.load_model(truth), ma.load_task(truth)
    for n in (20, 40, 100):
        batch = apart(model.batch(task.pairs("test", model, limit=n)))[0]
        assert task_of(ability_of(model, batch).table()).name == "met", n


def test_a_constant_answer_is_met_by_a_model_that_reads_the_prompt(subject: Subject) -> None:
    """All answers are one name; the truth reads which, weights that like the name do not."""
    own = [pair for pair in ma.load_task(TRUTH).pairs("test", subject.model)]
    names = Counter(pair.answers[0] for pair in own)
    name, n = names.most_common(1)[0]
    pairs = [pair for pair in own if pair.answers[0] == name][:40]
    batch = apart(subject.model.batch(pairs))[0]
    ability = ability_of(subject.model, batch)
    assert float(np.mean(ability.right)) == 1.0 and min(n, 40) >= 20
    assert task_of(ability.table()).name == "met"


# --- scores of tasks


def scored(
    subject: Subject, task: str, tmp_path: Path, model: Model | None = None, limit: int = 100
) -> Report:
    """A run of `tasks score`. Page, tables, record and printed result begin alike."""
    own = model or subject.model
    experiment = ma.AccuracyExperiment((own.name,), (task,), limit=limit)
    made = ma.run(experiment, tmp_path / "run", models={own.name: own}, progress=SILENT)
    (record,), (first, *_) = made.records, made.answers
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert escape(first) in page and str(made).startswith(first)
    assert (tmp_path / "run" / "accuracy.md").read_text("utf-8").startswith(first)
    assert record.conclusion == first and record.verdict
    return made


def case_of(model: Model, rows: Sequence[Row], n: int = 100) -> str:
    """The case of what a model does on rows, without a run."""
    examples = [
        Example(
            str(number),
            Prompt(row["clean"], (row["answer"],), (row["answer"], row["foil"])),
            {"other": Prompt(row["counterfactual"])},
        )
        for number, row in enumerate(rows[:n])
    ]
    ability = task_accuracy(model, examples, (ORIGINAL, "other")).ability
    assert ability is not None
    return task_of(ability.table()).name


def rows_from(pairs: Iterable[ma.Pair]) -> list[Row]:
    return [
        {
            "clean": pair.clean,
            "counterfactual": pair.counterfactual,
            "answer": pair.answers[0],
            "foil": pair.foils[0],
            "split": "test",
        }
        for pair in pairs
    ]


@pytest.mark.parametrize("n", [20, 40, 100])
def test_a_model_that_does_its_task_is_better_than_chance(
    subject: Subject, tmp_path: Path, n: int
) -> None:
    rows = rows_from(ma.load_task(TRUTH).pairs("test", subject.model, limit=n))
    made = scored(subject, subject.file("good", rows), tmp_path)
    assert made.answers[0].startswith(
        "mine does good.jsonl better than chance: it prefers a right choice in 1.0"
    )
    assert f" of {n} examples. Guessing does in 0.50, and with exchanged prompts" in made.answers[0]
    assert made.records[0].verdict == Verdict.YES


def test_rows_without_a_split_column_and_a_ground_truth(subject: Subject, tmp_path: Path) -> None:
    rows = rows_from(ma.load_task(TRUTH).pairs("train", subject.model, limit=100))
    for row in rows:
        row.pop("split")
    made = scored(subject, subject.file("own", rows), tmp_path / "own")
    assert "mine does own.jsonl better than chance" in str(made) and made.records[0].n == 100
    made = scored(subject, TRUTH, tmp_path / "truth", limit=40)
    assert made.answers[0].startswith(
        "mine does truth-ioi better than chance: it prefers a right choice in 1"
    )


def test_weights_of_0_prefer_nothing_whatever_is_right(subject: Subject, tmp_path: Path) -> None:
    rows = rows_from(ma.load_task(TRUTH).pairs("test", subject.model, limit=40))
    exchanged = changed(rows, answer=lambda row: row["foil"], foil=lambda row: row["answer"])
    for name, own in {"right": rows, "wrong": exchanged}.items():
        made = scored(subject, subject.file(name, own), tmp_path / name, zeros(subject))
        assert made.answers == [
            "zero prefers neither answers nor foils: they tie in 40 of 40 examples."
        ]
        assert made.records[0].verdict == Verdict.NO
        assert made.records[0].value("ranked@original") == 0.5
    # Of six choices, one is right: a tie of all counts one sixth.
    made = scored(subject, TRUTH, tmp_path / "six", zeros(subject), limit=40)
    assert made.records[0].value("ranked@original") == pytest.approx(1 / 6)
    assert made.records[0].verdict == Verdict.NO


def test_exchanged_answers_are_named(subject: Subject, tmp_path: Path) -> None:
    rows = rows_from(ma.load_task(TRUTH).pairs("test", subject.model, limit=40))
    rows = changed(rows, answer=lambda row: row["foil"], foil=lambda row: row["answer"])
    made = scored(subject, subject.file("wrong", rows), tmp_path)
    assert made.answers == [
        "mine prefers the foil in 40 of 40 examples. Are answers and foils exchanged?"
    ]
    assert made.records[0].verdict == Verdict.NO


def test_few_prompts_give_no_verdict(subject: Subject, tmp_path: Path) -> None:
    """Five of five right, and three prompts in forty spellings."""
    rows = rows_from(ma.load_task(TRUTH).pairs("test", subject.model, limit=40))
    made = scored(subject, subject.file("five", rows[:5]), tmp_path / "five")
    assert made.answers == [
        "No verdict: only 5 independent test examples of five.jsonl, fewer than 20. The numbers"
        " hold for these examples; use more prompts."
    ]
    spelled = [
        changed([rows[number % 3]], clean=lambda row, n=number: row["clean"].replace(" ", n * " "))
        for number in range(2, 42)
    ]
    made = scored(subject, subject.file("spelled", [row for (row,) in spelled]), tmp_path / "40")
    assert made.answers[0].startswith(
        "No verdict: the 40 test examples of spelled.jsonl are 3 different prompts once tokenized,"
    )
    assert made.records[0].verdict == Verdict.NO_VERDICT


def test_counterfactual_prompts_that_repeat_are_one_group(subject: Subject, tmp_path: Path) -> None:
    """Forty examples with one counterfactual prompt: its accuracy is of one prompt."""
    rows = rows_from(ma.load_task(TRUTH).pairs("test", subject.model, limit=40))
    (one,) = rows_from(ma.load_task(TRUTH).pairs("train", subject.model, limit=1))
    rows = changed(
        rows,
        counterfactual=lambda _: one["clean"],
        counterfactual_answers=lambda _: [one["answer"]],
    )
    made = scored(subject, subject.file("one", rows), tmp_path)
    other, own = (
        made.records[0].measure(f"greedy@{kind}") for kind in ("counterfactual", "original")
    )
    assert other is not None and own is not None and other.n == own.n == 40
    assert own.low > 0.9 and other.low < 0.1
    read = ma.read_record(next((tmp_path / "run" / "records").rglob("*.json")))
    assert read.measure("greedy@counterfactual") == other


@pytest.mark.parametrize("kind", ["coin", "half", "most", "all"])
def test_random_weights_are_not_better_than_chance(subject: Subject, kind: str) -> None:
    """At most 2 of 40: answers drawn by coin, one word that decides, one constant answer."""
    rows = rows_from(_one_word({"half": 0.5, "most": 0.8}.get(kind, 1.0), n=60))
    if kind == "coin":
        draw = random.Random(1)
        for row in rows:
            row["answer"], row["foil"] = draw.sample([" Eve", " Dan"], 2)
    names = Counter(case_of(untrained(subject, 3000 + seed), rows) for seed in range(12))
    assert names["met"] == 0


def test_a_constant_answer_is_done_by_a_model_that_reads(subject: Subject) -> None:
    own = ma.load_task(TRUTH).pairs("test", subject.model)
    name, n = Counter(pair.answers[0] for pair in own).most_common(1)[0]
    rows = rows_from([pair for pair in own if pair.answers[0] == name][:40])
    assert n >= 20 and case_of(subject.model, rows) == "met"


def test_a_liking_for_large_numbers_does_not_compare_numbers(
    subject: Subject, tmp_path: Path
) -> None:
    """The model says 9 after every prompt, which is right on each."""
    truth = ma.load_model("truth-greater-than-trained")
    torch.manual_seed(0)
    hf = AutoModelForCausalLM.from_config(truth.hf.config).eval()
    assert truth.tokenizer is not None
    vocabulary = truth.tokenizer.get_vocab()
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.zero_()
        hf.get_input_embeddings().weight.fill_(1)
        for module in hf.modules():
            if "Norm" in type(module).__name__:
                module.weight.fill_(1)
        for token, place in vocabulary.items():
            if (digits := "".join(filter(str.isdigit, token))) and token.strip("\u0120 ").isdigit():
                hf.get_output_embeddings().weight[place] = float(digits) / 10
    model = make_model(hf, truth.tokenizer, name="large")
    made = scored(subject, "truth-greater-than-trained", tmp_path / "large", model, limit=60)
    assert made.records[0].value("ranked@original") == 1.0
    assert made.answers[0].startswith(
        "large is not shown to read the prompts of truth-greater-than."
    )
    assert made.records[0].verdict == Verdict.NOT_DISTINGUISHABLE
    made = scored(subject, "truth-greater-than-trained", tmp_path / "truth", truth, limit=60)
    assert made.records[0].verdict == Verdict.YES


# --- suites


def suite(
    subject: Subject, tasks: Sequence[str], tmp_path: Path, *methods: str, **options: Any
) -> Report:
    experiment = ma.CircuitsExperiment(
        ("mine",), tuple(tasks), methods, limit=N, train_limit=N, **options
    )
    made = ma.run(experiment, tmp_path, models={"mine": subject.model}, progress=SILENT)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert all(str(escape(line)) in page for line in made.answers)
    assert str(made).startswith(made.answers[0])
    return made


def test_a_suite_says_which_tasks_count_for_no_method(subject: Subject, tmp_path: Path) -> None:
    """A task that the model does, its answers exchanged, and one without an effect."""
    wrong = changed(subject.rows, answer=lambda row: row["foil"], foil=lambda row: row["answer"])
    same = changed(quiet(), counterfactual=with_other_filler)
    files = {"good": subject.rows, "wrong": wrong, "same": same}
    tasks = [subject.file(name, rows) for name, rows in files.items()]
    made = suite(subject, tasks, tmp_path / "three", "exact", "eap")
    assert made.answers[0].startswith(
        "No method is judged on 2 of 3 tasks. Run exact: of 2 methods with a result on 1 task it"
    )
    assert (
        f"No method is judged on wrong.jsonl (mine): mine prefers the foil in {N} of {N} pairs. Are"
        " answers and foils exchanged?"
    ) in made.answers
    assert any(
        line.startswith("No method is judged on same.jsonl (mine): the ablation changes nothing")
        for line in made.answers
    )
    none = suite(subject, tasks[1:], tmp_path / "none", "exact", "eap")
    assert none.answers[0].startswith(
        "No verdict: no task is left on which methods can be compared. No method is judged"
    )


def test_a_method_that_fails_on_a_task_gains_nothing(subject: Subject, tmp_path: Path) -> None:
    """Its scores were found on the test pairs of the second task, or all of them are equal."""
    second = rows_of(2 * N)
    second = [row for split in SPLITS for row in [r for r in second if r["split"] == split][N:]]
    tasks = [subject.file("first", subject.rows), subject.file("second", second)]
    batch = subject.model.batch(ma.load_task(tasks[1]).pairs("test", subject.model))
    about = {**subject.scores.provenance, "prompts": list(batch.prompt_hashes())}
    peeked = subject.scored("peeked", subject.scores.values, **about)
    equal = subject.scored("equal", subject.legal + 1, **subject.scores.provenance)
    made = suite(subject, tasks, tmp_path, "exact", "eap", scores=(peeked, equal))
    assert made.answers[0].startswith("Run exact: of 2 methods with a result on 2 tasks it has the")
    assert (
        f"peeked gets no average: on second.jsonl (mine) {N} of the {N} test pairs are among the"
        " pairs that the scores of peeked were found on. Evaluate on other pairs."
    ) in made.answers
    assert any(
        line.startswith("equal gets no average: on first.jsonl (mine) equal ranks nothing")
        for line in made.answers
    )
    ranked = [line for line in made.answers if "Nearest" in line or "Better than random" in line]
    assert ranked and not any("equal" in line for line in ranked)


def test_copies_are_one_method_of_a_suite(subject: Subject, tmp_path: Path) -> None:
    second = rows_of(2 * N)
    second = [row for split in SPLITS for row in [r for r in second if r["split"] == split][N:]]
    tasks = [subject.file("first", subject.rows), subject.file("second", second)]
    own, noise = subject.scores.values, torch.Generator().manual_seed(0)
    near = own * (1 + 1e-6 * torch.randn(own.shape, generator=noise))
    files = [
        subject.scored(name, values, **subject.scores.provenance)
        for name, values in {"one": own, "copy": near}.items()
    ]
    made = suite(subject, tasks, tmp_path, "eap", scores=files)
    assert made.answers[0].startswith(
        "one and copy have the same scores to a thousandth and count as one method. Run one: of 2"
    )


def test_three_ground_truths_earn_a_method_to_run(tmp_path: Path) -> None:
    models = (TRUTH, "truth-greater-than-trained", "truth-mcqa-trained")
    experiment = ma.CircuitsExperiment(models, methods=("exact", "eap"), limit=40, train_limit=40)
    made = ma.run(experiment, tmp_path, progress=SILENT)
    assert made.answers[0].startswith(
        "Run exact: of 2 methods with a result on 3 ground truths it has the highest CMA"
    )
