"""Several judges, prompts and papers beside each other: rows, errors, a consensus, the command."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.experiments import COVERAGE, SMALL_EXPERIMENTS
from mechassay.claims.judgments import read_judgments
from mechassay.cli.main import main
from mechassay.errors import BadUsage, UnknownName
from mechassay.judges.experiment import AssessExperiment
from mechassay.judges.judges_compared import (
    CONSENSUS,
    JudgedRun,
    JudgesCompared,
    consensus_of,
    read_judged_run,
)
from mechassay.runs.run import run
from mechassay.testing import check_record
from mechassay.utils.display import SILENT

JOB: AssessExperiment = SMALL_EXPERIMENTS["assess"]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One paper by a careful judge with a vote and an audit, by a generous one in one run, and by
    one that answers nothing.
    """
    folder = tmp_path_factory.mktemp("judges")
    careful = read_judgments(COVERAGE / "judged.yaml")
    generous = careful.model_copy(
        update={
            "rater": careful.rater.model_copy(update={"id": "generous"}),
            "claims": tuple(
                own.model_copy(
                    update={
                        "criteria": {
                            code: judgment.model_copy(update={"status": "YES"})
                            for code, judgment in own.criteria.items()
                        }
                    }
                )
                for own in careful.claims
            ),
        }
    )
    generous.save(folder / "generous.json")
    (folder / "empty").mkdir()
    experiments = {
        "careful": replace(JOB, steps="one", criteria=(), audit=True),
        "generous": replace(
            JOB, judge=f"scripted:{folder / 'generous.json'}", steps="one", criteria=(), runs=1
        ),
    }
    for name, experiment in experiments.items():
        run(experiment, folder / name, progress=SILENT)
    first = next((folder / "careful" / "answers").glob("*.json"))
    (folder / "empty" / first.name).write_bytes(first.read_bytes())
    silent = replace(JOB, judge=f"replay:{folder / 'empty'}", runs=1)
    run(silent, folder / "silent", progress=SILENT)
    return [folder / name for name in ("generous", "careful", "silent")]


def test_rows_are_ordered_by_error_and_a_judge_without_answers_is_last(judged: list[Path]) -> None:
    compared = JudgesCompared.of(list(map(read_judged_run, judged)), "Causally Suggestive")
    assert [own.judge for own in compared.judged[:2]] == ["script of careful", "script of generous"]
    assert compared.judged[2].why and math.isnan(compared.judged[2].cvs)
    assert compared.judged[3].judge == CONSENSUS
    record = compared.record()
    check_record(record)
    rows = record.table("judges").rows()
    assert [row["error"] for row in rows[:2]] == [0.0, 3.0]
    assert rows[0]["steps"] == "vote, audit" and rows[0]["n_runs"] == 2
    assert record.value("mean error") == 1.5 and record.measures[0].n_undefined == 1
    # All YES with quotes of its own that are not about most criteria.
    assert float(str(rows[1]["supported"])) < float(str(rows[1]["cvs"])) == 10.0
    assert any("silent" in text or "recorded" in text for text in record.warnings)


def test_tokens_and_requests_are_those_of_all_runs_and_steps(judged: list[Path]) -> None:
    own = read_judged_run(judged[1])
    assert own.spent["requests"] == 2 and own.spent["cost"] == 0
    assert len(own.runs) == 2 and own.effort == "" and own.prompt.startswith("judge@")


def test_a_consensus_is_what_most_judges_say() -> None:
    def said(judge: str, status: str) -> JudgedRun:
        from helpers.judges import CIRCUIT, claim
        from helpers.judges import run as judgments

        return JudgedRun(
            "p", judge, judgments=judgments(claim("c", CIRCUIT, {"I1": status}), by=judge)
        )

    votes = [said("a", "YES"), said("b", "YES"), said("c", "NO")]
    for by, expected in (("majority", "YES"), ("minimum", "NO"), ("median", "YES")):
        together = consensus_of(votes, by).judgments  # pyright: ignore[reportArgumentType]
        assert together is not None
        assert together.claims[0].statuses["I1"] == expected
    with pytest.raises(BadUsage, match="two judges or more"):
        consensus_of(votes[:1])


def test_a_folder_of_another_run_and_a_tier_that_is_none_are_refused(
    judged: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(UnknownName, match="tier"):
        JudgesCompared.of([read_judged_run(judged[0])], "Splendid")
    run(SMALL_EXPERIMENTS["gym-check"], tmp_path, progress=SILENT)
    with pytest.raises(BadUsage, match="not of claims assess"):
        read_judged_run(tmp_path)


def test_the_command(
    judged: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, together = tmp_path / "judges.html", tmp_path / "consensus.json"
    words = ["claims", "judges", *map(str, judged[:2]), "-r", "Proposed"]
    with pytest.raises(SystemExit) as done:
        main([*words, "-o", str(page), "--consensus", str(together)])
    said = capsys.readouterr()
    assert done.value.code == 0, said.err
    assert "<svg" in page.read_text("utf-8") and "2 runs of judges" in page.read_text("utf-8")
    assert read_judgments(together).rater.id.startswith("majority of")
