"""Runs of a judge over a document: what stands in the folder, kill and resume, the command."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mechassay
from helpers.experiments import COVERAGE, SMALL_EXPERIMENTS
from helpers.judge_server import FaultProxy, JudgeServer, form_of, port_of, served, smallest
from mechassay.claims.document import PagedDocument
from mechassay.claims.judgments import read_judgments
from mechassay.claims.quote_rules import can_be_about
from mechassay.cli.main import main
from mechassay.documents.reading import read_document
from mechassay.errors import BadFile, BadUsage, MechassayError, NoAnswer, UnknownName
from mechassay.judges.assessment import (
    assess,
    document_text,
    find_flags,
    judge_prompt,
    prompt_text,
)
from mechassay.judges.experiment import AssessExperiment, judgments_file
from mechassay.judges.judge import ScriptedJudge
from mechassay.results.reading import read_record
from mechassay.runs.experiment import command_line
from mechassay.runs.run import run
from mechassay.utils.display import SILENT

JOB: AssessExperiment = SMALL_EXPERIMENTS["assess"]
PAPER, SCRIPT = COVERAGE / "paper.md", COVERAGE / "judged.yaml"


def test_every_run_of_the_judge_is_a_file_of_judgments_with_scores(tmp_path: Path) -> None:
    results = run(JOB, tmp_path, progress=SILENT)
    assert [record.cell["run"] for record in results.records] == ["1", "2", "final"]
    first, second = (read_judgments(judgments_file(tmp_path, each)) for each in (1, 2))
    assert first == second and first.rater.id == "script of careful"
    assert len(list((tmp_path / "answers").glob("*.json"))) == 2 * 4
    record = read_record(tmp_path / "scores" / "1" / "names-circuit.json")
    assert record.kind == "assess" and record.spent["requests"] == 4
    assert record.spent["cost"] == 0 and record.specs["judge"].args["steps"] == "per-criterion"
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "2 runs of the judge" in page and 'href="run-2.html"' in page
    assert "recovers 97 %" in page and "NO_VARIANCE_REPORTED" in page
    assert "Sufficiency" in (tmp_path / "run-2.html").read_text("utf-8")
    assert "YES (unsupported)" in (tmp_path / "run-1.md").read_text("utf-8")


def test_more_runs_may_be_asked_for_and_a_single_one_is_a_page_of_its_claims(
    tmp_path: Path,
) -> None:
    run(replace(JOB, runs=1), tmp_path, progress=SILENT)
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "Claim names-circuit" in page and not (tmp_path / "run-1.html").exists()
    before = judgments_file(tmp_path, 1).stat().st_mtime_ns
    assert len(run(replace(JOB, runs=3), tmp_path, progress=SILENT).records) == 4
    assert judgments_file(tmp_path, 1).stat().st_mtime_ns == before


def test_recorded_answers_make_the_same_judgments(tmp_path: Path) -> None:
    run(JOB, tmp_path / "first", progress=SILENT)
    replay = replace(JOB, judge=f"replay:{tmp_path / 'first' / 'answers'}")
    run(replay, tmp_path / "again", progress=SILENT)
    for number in (1, 2):
        texts = [
            judgments_file(tmp_path / name, number).read_bytes() for name in ("first", "again")
        ]
        assert texts[0] == texts[1]


def test_a_document_that_was_edited_is_another_plan(tmp_path: Path) -> None:
    paper = tmp_path / "paper.md"
    paper.write_text(PAPER.read_text())
    experiment = replace(JOB, source=str(paper))
    run(experiment, tmp_path / "run", progress=SILENT)
    paper.write_text(f"{PAPER.read_text()} More.")
    with pytest.raises(BadUsage, match=r"paper\.md has other content than on"):
        run(experiment, tmp_path / "run", progress=SILENT)


@pytest.mark.parametrize(
    ("changed", "kind", "match"),
    [
        ({"steps": "two"}, UnknownName, "Unknown steps of claims assess 'two'"),
        ({"judge": "skripted:a"}, UnknownName, "Did you mean 'scripted'"),
        ({"judge": "scripted:nowhere.yaml"}, BadFile, "cannot be read"),
        ({"criteria": ("I9",)}, UnknownName, "criterion of mv-27"),
        ({"source": "nowhere.md"}, BadFile, "cannot be read"),
        ({"claims": "nowhere.yaml"}, BadFile, "cannot be read"),
        ({"input_price": 1.0}, BadUsage, "give both or none"),
        ({"tries": 0}, BadUsage, "tries must be 1 or more"),
    ],
)
def test_what_cannot_be_is_refused_before_the_folder_is_made(
    changed: dict[str, Any], kind: type[MechassayError], match: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=match):
        run(replace(JOB, **changed), tmp_path / "run", progress=SILENT)
    assert not (tmp_path / "run").exists()


def test_a_judge_that_gives_no_answer_is_a_failure_that_says_why(tmp_path: Path) -> None:
    empty = tmp_path / "answers"
    run(replace(JOB, runs=1), tmp_path / "one", progress=SILENT)
    (tmp_path / "one" / "answers").rename(empty)
    results = run(replace(JOB, judge=f"replay:{empty}"), tmp_path / "run", progress=SILENT)
    assert list(results.by_name) == ["1"]
    failure, _ = results.failures
    assert (
        failure.error == "NoAnswer" and "no answer to this request was recorded" in failure.message
    )
    assert "was recorded" in (tmp_path / "run" / "report.html").read_text("utf-8")


def test_the_command_is_written_on_the_page_and_prints_the_scores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["claims", "assess", str(PAPER), "--judge", f"scripted:{SCRIPT}"]
    words += ["--criterion", "I1", "--criterion", "I2", "-o", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as done:
        main(words)
    said = capsys.readouterr()
    assert done.value.code == 0, said.err
    assert "Runs of the judge" in said.out and "report.html" in said.out
    experiment = AssessExperiment(str(PAPER), f"scripted:{SCRIPT}", criteria=("I1", "I2"))
    assert command_line(experiment, Path("run")) == " ".join(["mechassay", *words[:-1], "run"])


def test_a_judge_that_invents_quotes_makes_the_command_fail(tmp_path: Path) -> None:
    words = ["claims", "assess", str(PAPER), "--judge", f"scripted:{SCRIPT}", "--criterion", "E4"]
    with pytest.raises(SystemExit) as done:
        main([*words, "-o", str(tmp_path)])
    assert done.value.code == 1


# Kill and resume


def reply(body: dict[str, Any]) -> str:
    """An answer of its own to every request, after a moment."""
    time.sleep(0.05)
    found = smallest(form_of(body))
    for own in found.get("criteria", {}).values():
        own["reason"] = hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest()
    return json.dumps(found)


@pytest.mark.guard
def test_a_run_that_was_killed_through_faults_ends_as_one_that_was_not(tmp_path: Path) -> None:
    pytest.importorskip("pydantic_ai", reason="needs pip install 'mechassay[judge]'")
    server = JudgeServer(reply)
    codes = ("C1", "I1", "I2", "E4")
    with served(server) as url:
        with served(FaultProxy(port_of(url), seed=3, share=0.3, slow=2.0)) as faulty:
            experiment = AssessExperiment(
                str(PAPER),
                f"openai:small@{faulty}",
                runs=2,
                steps="per-criterion",
                criteria=codes,
                timeout=1.5,
            )
            words = command_line(experiment, tmp_path / "killed").split()[1:]
            answers = tmp_path / "killed" / "answers"
            environment = {**os.environ, "PYTHONPATH": str(Path(mechassay.__file__).parents[1])}
            child = subprocess.Popen(
                [sys.executable, "-m", "mechassay", *words],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            kept = wait_for(answers, 3, child)
            child.send_signal(signal.SIGKILL)
            child.wait()
            done = [file.read_bytes() for file in kept]
            assert len(list(answers.glob("*.json"))) < 10, "it was killed before it ended"
            run(experiment, tmp_path / "killed", progress=SILENT)
            assert [file.read_bytes() for file in kept] == done, "nothing is asked for twice"
        plain = replace(experiment, judge=f"openai:small@{url}")
        run(plain, tmp_path / "plain", progress=SILENT)
    for number in (1, 2):
        texts = [
            judgments_file(tmp_path / name, number).read_bytes() for name in ("killed", "plain")
        ]
        assert texts[0] == texts[1]
    hashes = [
        {file.name for file in tmp_path.glob(f"{each}/answers/*")} for each in ("killed", "plain")
    ]
    assert hashes[0] == hashes[1] and len(hashes[0]) == 2 * 5


def wait_for(folder: Path, n: int, child: subprocess.Popen[bytes]) -> list[Path]:
    """The first files with an answer, as soon as there are so many."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        found = [
            file
            for file in sorted(folder.glob("*.json"))
            if json.loads(file.read_text("utf-8"))["answer"] is not None
        ]
        if len(found) >= n:
            return found
        assert child.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    raise AssertionError("the run did not begin")


# The pipeline


def pipeline(**changes: Any) -> AssessExperiment:
    return replace(JOB, steps="one", criteria=(), runs=3, audit=True, advocate=True, **changes)


def test_runs_vote_audit_and_advocate_are_one_command(tmp_path: Path) -> None:
    results = run(pipeline(), tmp_path, progress=SILENT)
    assert [record.cell["run"] for record in results.records] == ["1", "2", "3", "final"]
    name = "final-vote3-audit-advocate-conservative"
    final = read_judgments(judgments_file(tmp_path, name))
    assert [step.step for step in final.steps] == ["vote", "audit", "advocate"]
    who = [step.inputs[0].rater.id for step in final.steps[1:]]
    assert who == ["script of careful as auditor", "script of careful as devil's advocate"]
    assert (
        read_judgments(judgments_file(tmp_path, f"{name}-auditor")).rater.kind == "language model"
    )
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "after vote, audit, advocate:" in page and 'href="steps.html"' in page
    assert "What they changed" in page and (tmp_path / "steps.html").is_file()


def test_an_audit_may_be_asked_for_later_and_costs_no_run_again(tmp_path: Path) -> None:
    run(replace(pipeline(), audit=False, advocate=False), tmp_path, progress=SILENT)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "answers").glob("*.json")}
    results = run(pipeline(), tmp_path, progress=SILENT)
    after = {file: file.stat().st_mtime_ns for file in (tmp_path / "answers").glob("*.json")}
    assert all(after[file] == time_ns for file, time_ns in before.items())
    assert results.records[-1].specs["judge"].args["followed_by"] == "vote, audit, advocate"


def test_a_run_that_is_missing_leaves_the_others_and_says_so_in_a_line(tmp_path: Path) -> None:
    run(pipeline(), tmp_path / "whole", progress=SILENT)
    some = tmp_path / "answers"
    shutil.copytree(tmp_path / "whole" / "answers", some)
    second = [
        file for file in some.glob("*.json") if json.loads(file.read_text())["request"]["run"] == 1
    ]
    for file in second:
        file.unlink()
    replayed = replace(pipeline(), judge=f"replay:{some}")
    results = run(replayed, tmp_path / "part", progress=SILENT)
    assert list(results.by_name) == ["1", "3"]
    second_run, final = results.failures
    assert "no answer to this request was recorded" in second_run.message
    assert final.message.startswith("The vote needs 3 runs of the judge; 2 gave no judgments.")
    assert "\n" not in final.message


def test_runs_with_other_numbers_of_claims_are_one_vote() -> None:
    from helpers.judges import CIRCUIT, DUPLICATE, claim
    from helpers.judges import run as judged
    from mechassay.judges.voting import vote

    one = judged(claim("circuit", CIRCUIT, "YES"))
    two = judged(claim("circuit", CIRCUIT, "PARTIAL"), claim("more", DUPLICATE, "YES"))
    voted = vote([one, two, one])
    assert {own.claim.id: len(own.runs) for own in voted.claims} == {"circuit": 3, "more": 1}
    assert voted.claim("circuit").statuses["I1"] == "PARTIAL"


def test_a_document_without_claims_is_one_line(tmp_path: Path) -> None:
    nothing = {"claims": []}
    judge = ScriptedJudge(lambda request: nothing, "honest")
    with pytest.raises(NoAnswer, match="finds no mechanism claim in paper.md") as error:
        assess(read_document(str(PAPER)), judge, kept=tmp_path)
    assert "\n" not in str(error.value) and len(list(tmp_path.glob("*.json"))) == 1


def test_a_prompt_of_ones_own_is_another_plan_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(prompt_text().replace("id: judge", "id: strict").replace("You are strict", "Be"))
    results = run(replace(JOB, prompt=str(own)), tmp_path / "run", progress=SILENT)
    assert results.records[0].specs["prompt"].name == "strict"
    own.write_text("role: judge")
    with pytest.raises(BadFile, match="own.yaml: "):
        run(replace(JOB, prompt=str(own)), tmp_path / "other", progress=SILENT)


def test_proofs_count_in_documents_without_experiments_alone() -> None:
    theory = "Theorem. " + "Lemma and proof. " * 6
    for text, mode, expected in (
        (theory, "auto", True),
        (theory, "never", False),
        ("We ablate heads.", "auto", False),
        ("We ablate heads.", "always", True),
    ):
        document = PagedDocument("paper.md", "a" * 64, (text,), 1)
        words = document_text(judge_prompt(), document, find_flags(document), mode)  # pyright: ignore[reportArgumentType]
        assert ("Proofs count so" in words) == expected
    assert can_be_about("I1", "Corollary 4. Without it no model has the behaviour, by the proof.")
    assert can_be_about("I2", "We construct the weights exactly.")


def test_a_judge_that_only_talks_is_a_failure_with_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "none").mkdir()
    run(replace(JOB, runs=1), tmp_path / "whole", progress=SILENT)
    kept = next((tmp_path / "whole" / "answers").glob("*.json"))
    shutil.copy(kept, tmp_path / "none")
    words = ["claims", "assess", str(PAPER), "--judge", f"replay:{tmp_path / 'none'}"]
    with pytest.raises(SystemExit) as done:
        main([*words, "--runs", "2", "-o", str(tmp_path / "run")])
    assert done.value.code == 1
    said = capsys.readouterr().err
    assert "Traceback" not in said and "no answer to this request was recorded" in said
    assert "Nothing was judged." in (tmp_path / "run" / "report.html").read_text("utf-8")


@pytest.mark.parametrize("name", ["heads", "probe", "proof"])
def test_the_examples_can_be_judged_by_their_scripts(name: str, tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "examples" / "judge"
    experiment = AssessExperiment(
        str(folder / f"{name}.md"), f"scripted:{folder / f'{name}-judged.yaml'}", steps="one"
    )
    results = run(experiment, tmp_path)
    assert results.records
