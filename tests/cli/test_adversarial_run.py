"""`mechassay adversarial run` and `paper` from the command line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny_models
from helpers.models import word_tokenizer, write_small_gpt2
from mechassay.adversarial import statistics
from mechassay.adversarial.paper import PaperExperiment
from mechassay.tasks import greater_than
from mechassay.tasks.docstring import Docstring
from mechassay.tasks.greater_than import GreaterThan
from mechassay.tasks.task import PAPER
from mechassay.testing import tiny

Run = Callable[..., Any]
NOUNS = {"train": ("war",), "validation": ("age",), "test": ("boom",), "private": ("era",)}
TRUTH = ("adversarial", "run", "-m", "truth-ioi", "-t", "truth-ioi")
SMALL = (
    "--n-clean",
    "12",
    "--n-corrupted",
    "10",
    "--worst",
    "2",
    "--resamples",
    "20",
    "--permutations",
    "20",
)


@pytest.fixture(autouse=True)
def few_heat_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of the time."""
    monkeypatch.setattr(statistics, "MAPS", 0)


@pytest.mark.slow
def test_a_run_and_its_report(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(*TRUTH, *SMALL, "-c", "truth", "-c", "eap@0.2", "-o", out)
    assert done.code == 0, done.err
    assert (
        "All circuits, in nats" in done.out
        and "empty" in done.out
        and f"Report: {out / 'report.html'}" in done.out
    )
    names = {
        "plan.json",
        "prompts.json",
        "values.parquet",
        "data.json",
        "report.html",
        "records",
        "found",
    }
    assert {path.name for path in out.iterdir()} == names
    page = (out / "report.html").read_text("utf-8")
    (out / "report.html").unlink()
    again = run("report", out)
    assert again.code == 0 and (out / "report.html").read_text("utf-8") == page
    refused = run(*TRUTH, "--n-clean", "13", "-c", "truth", "-o", out)
    assert refused.code == 2 and "holds a run with" in refused.line


@pytest.mark.slow
def test_controls_that_fail_are_exit_code_1(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mechassay.adversarial import evaluation

    runner = evaluation.circuit_runner
    monkeypatch.setattr(
        evaluation,
        "circuit_runner",
        lambda decoder, graph, edges, neurons: runner(decoder, graph, edges & False),
    )
    done = run(*TRUTH, *SMALL, "-c", "truth", "-o", tmp_path / "out")
    assert (
        done.code == 1 and "controls fail: truth: The full circuit does not give KL = 0" in done.err
    )
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert page.index("Controls fail") < page.index("<h2>")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("-c", "ioi"), "Unknown circuit 'ioi'. Known: "),
        (("-c", "truht"), "Did you mean 'truth'"),
        (("-c", "canonical:ioi"), "The ioi circuit is one of GPT-2 small"),
        (
            ("-c", "random@0.5", "--design", "cube"),
            "Unknown design of adversarial run 'cube'. Known: grid, independent, matched",
        ),
        (("-c", "full", "--split", "private"), "Unknown split 'private'"),
        (("-c", "full", "--enumerate", "--design", "matched"), "cannot be enumerated"),
        (("-c", "full", "--counterfactual", "none"), "Unknown counterfactual 'none'"),
    ],
)
def test_bad_input_is_one_line(
    run: Run, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    done = run(*TRUTH, *words, "-o", tmp_path / "out")
    assert done.code == 2 and message in done.line


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "mistake",
    [
        ("-c", "full", "--n-clean", "0"),
        ("-c", "full", "--split", "tset"),
        ("-c", "full", "--counterfactual", "foo"),
        ("-c", "random@99999"),
        ("-c", "full", "--device", "cud"),
    ],
)
def test_a_mistake_does_not_claim_the_folder(
    run: Run, tmp_path: Path, mistake: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    assert run(*TRUTH, *mistake, "-o", out).code == 2
    done = run(*TRUTH, *SMALL, "-c", "empty", "-o", out, "--permutations", "5", "--only-plan")
    assert done.code == 0, done.err
    assert json.loads((out / "plan.json").read_text("utf-8"))["circuits"] == ["empty"]


def test_help_offers_only_ablations_that_can_be_run(run: Run) -> None:
    shown = re.sub(r"[\s│]+", " ", run("adversarial", "run", "--help").out)
    assert "counterfactual, zero, mean or positional-mean" in shown and "resample," not in shown
    assert "resample," in run("circuits", "run", "--help").out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--n-clean", "0"), "n_clean must be between 1 and 1000000; got 0"),
        (("--n-corrupted", "0"), "n_corrupted must be between 1 and 1000000; got 0"),
        (("--n-matched", "-1"), "n_matched must be between 1 and 1000000; got -1"),
        (("--worst", "-1"), "worst must be 0 or more; got -1"),
    ],
)
def test_the_paper_checks_sizes_before_it_loads(
    run: Run, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    # The hub has no such model: had it been asked for, the message would be another.
    done = run("adversarial", "paper", "-m", "nobody/nope", *words, "-o", tmp_path / "out")
    assert (
        done.code == 2 and done.line == f"mechassay: {message}." and not (tmp_path / "out").exists()
    )


def test_without_pyarrow(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = run(*TRUTH, "-c", "full", "-o", tmp_path / "out")
    assert done.code == 2 and "pip install 'mechassay[parquet]'" in done.line


@pytest.fixture(scope="module")
def small_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_gpt2(tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="module")
def small_attn_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random attention-only model of the graph of attn-only-4l,
    whose tokenizer knows the words of docstring.
    """
    tokenizer, folder = word_tokenizer(Docstring(words=PAPER)), tmp_path_factory.mktemp("attn-only")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "VOCABULARY", len(tokenizer))
        tiny_models.write_attn_only(folder, n_layers=4, n_heads=8)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_all_matched_pairs(
    run: Run, small_gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(greater_than, "_nouns", lambda split: list(NOUNS[split]))
    words = ("-m", small_gpt2, "-t", "greater-than", "-c", "canonical:greater-than", "--enumerate")
    done = run(
        "adversarial", "run", *words, "--worst", "1", "--permutations", "20", "-o", tmp_path / "out"
    )
    assert done.code == 0, done.err
    record = json.loads((tmp_path / "out" / "records").glob("*.json").__next__().read_text("utf-8"))
    n = GreaterThan().population("test")
    assert (
        record["specs"]["task"]["args"]["population"]
        and {each["n"] for each in record["measures"]} == {n}
        and 80 < n < 200
    )
    assert not any(
        each["name"].startswith("bound") or each["low"] is not None for each in record["measures"]
    )
    assert f"All {n} matched pairs of the split test" in (
        tmp_path / "out" / "report.html"
    ).read_text("utf-8")


@pytest.mark.slow
def test_the_paper(run: Run, small_gpt2: Path, tmp_path: Path) -> None:
    out = tmp_path / "paper"
    words = (
        "adversarial",
        "paper",
        "-m",
        small_gpt2,
        "-o",
        out,
        "--n-clean",
        "6",
        "--n-corrupted",
        "5",
        "--n-matched",
        "8",
        "--worst",
        "1",
    )
    done = run(*words)
    assert done.code == 0, done.err
    assert "Skipped: docstring needs attn-only-4l" in done.out
    cells = [
        [cell.strip() for cell in line.strip("│ ").split("│")]
        for line in done.out.splitlines()
        if "│" in line
    ]
    means = [row for row in cells if row[0] == "mean"]
    assert [row[3] for row in means] == ["5.15", "0.59"] and [row[6] for row in means] == [
        "2.09",
        "0.08",
    ]
    assert {path.name for path in out.iterdir()} == {
        "plan.json",
        "records",
        "report.html",
        *(
            f"{task}-{pairs}"
            for task in ("ioi", "greater-than")
            for pairs in ("unmatched", "matched")
        ),
    }
    record = json.loads(
        (out / "ioi-matched" / "records").glob("*.json").__next__().read_text("utf-8")
    )
    assert (
        record["specs"]["method"]["args"]["edges"] == 963
        and record["specs"]["task"]["args"]["counterfactual"] == "new_names_abc_counterfactual"
    )
    assert float(means[1][1]) == pytest.approx(record["measures"][0]["value"], rel=0.01)
    page = (out / "report.html").read_text("utf-8")
    # The page ends with the verdict, which another model than GPT-2 cannot have, and says which
    # pairs these are.
    assert (
        page.index("Verdict on table 3") > page.index("Matched pairs (table 7)")
        and "the same in both prompts" in page
    )
    for task in ("ioi", "greater-than"):
        assert re.search(
            rf"{task}: what table 3 is closer to cannot be told: .* is not GPT-2 small\.", done.out
        )
        assert f"{task}: what table 3 is closer to cannot be told" in page
    again = run(*words)
    assert again.code == 0 and again.out == done.out
    assert (
        "table 7" in page
        and '<td><a href="ioi-matched/report.html">ioi-matched/report.html</a></td>' in page
    )


def test_the_paper_on_another_graph(run: Run, folder: Path, tmp_path: Path) -> None:
    done = run(
        "adversarial",
        "paper",
        "-m",
        folder,
        "-o",
        tmp_path / "out",
        "--n-clean",
        "3",
        "--n-corrupted",
        "3",
        "--n-matched",
        "3",
    )
    assert done.code == 1 and done.err.count("is one of GPT-2 small") == 4


@pytest.mark.slow
def test_the_docstring_circuit_of_the_paper(
    run: Run, small_attn_only: Path, folder: Path, tmp_path: Path
) -> None:
    words = (
        "--n-clean",
        "4",
        "--n-corrupted",
        "3",
        "--n-matched",
        "5",
        "--worst",
        "1",
        "-o",
        tmp_path / "out",
    )
    done = run("adversarial", "paper", "-m", folder, "--docstring-model", small_attn_only, *words)
    # The other model is not GPT-2 small: its four runs fail, and the docstring circuit's two are
    # made all the same.
    assert done.code == 1 and done.err.count("The ioi circuit is one of GPT-2 small") == 2
    record = json.loads(
        (tmp_path / "out" / "docstring-unmatched" / "records")
        .glob("*.json")
        .__next__()
        .read_text("utf-8")
    )
    assert (
        record["specs"]["method"]["args"]["edges"] == 24
        and record["specs"]["task"]["args"]["counterfactual"] == "random_random_counterfactual"
    )
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "What failed" in page and "12.07" in page and "14.64" not in page


@pytest.mark.slow
def test_pairs_methods_and_controls_are_chosen(run: Run, tmp_path: Path) -> None:
    words = (
        "--same",
        "template",
        "-c",
        "eap-ig-inputs@7",
        "--objective",
        "kl",
        "--pairing",
        "random",
        "--controls",
        "4",
    )
    done = run(*TRUTH, *SMALL, *words, "-o", tmp_path / "out")
    assert done.code == 0, done.err
    assert (
        "random paths" in done.out
        and "random edges" in done.out
        and "All prompts have one template." in done.out
    )
    plan = json.loads((tmp_path / "out" / "plan.json").read_text("utf-8"))
    assert (plan["same"], plan["objective"], plan["pairing"], plan["controls"]) == (
        ["template"],
        "kl",
        "random",
        4,
    )
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "random paths (16 pairs)" in page and "random edges (16 pairs)" in page
    assert (
        "pairing=random" in page
        and "objective=kl" in page
        and "those that agree in template" in page
        and "By template" in page
    )
    refused = run(
        *TRUTH,
        *SMALL,
        "--same",
        "template",
        "-c",
        "eap-ig-inputs@7",
        "--objective",
        "kl",
        "-o",
        tmp_path / "out",
    )
    assert refused.code == 2 and "holds a run with" in refused.line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--same", "template,"), "--same takes FIELD"),
        (("--same", "nothing"), "nothing"),
        (("--where", "subject"), "--where takes FIELD=VALUE"),
        (("--where", "place=zoo"), "place"),
        pytest.param(
            ("--where", "subject=Zoe"), "0 clean and 0 corrupted prompts", marks=pytest.mark.slow
        ),
        (("--pairing", "unmatched"), "matched, random, same-template"),
        (("--controls", "0"), "controls must be 1 or more"),
    ],
)
def test_wrong_choices_are_one_line(
    run: Run, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    done = run(*TRUTH, *SMALL, "-c", "random@0.5", *words, "-o", tmp_path / "out")
    assert done.code == 2 and message in done.line


@pytest.mark.slow
def test_a_heat_map_that_is_asked_for_is_drawn(run: Run, tmp_path: Path) -> None:
    words = (*TRUTH, *SMALL, "-c", "random@0.5")
    done = run(*words, "--heat-map", "subject,corrupted subject", "-o", tmp_path / "out")
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "out" / "plan.json").read_text("utf-8"))["heat_maps"] == [
        "subject,corrupted subject"
    ]
    assert "By subject and corrupted subject" in (tmp_path / "out" / "report.html").read_text(
        "utf-8"
    )
    refused = run(*words, "--heat-map", "subjct,subject", "-o", tmp_path / "other")
    assert refused.code == 2 and "Did you mean 'subject'" in refused.line


@pytest.mark.slow
def test_nothing_is_worse_than_by_the_least_effect(run: Run, tmp_path: Path) -> None:
    """Larger than the empty circuit's 99th percentile, no label's effect can be worth reporting."""
    done = run(*TRUTH, *SMALL, "-c", "random@0.5", "--least-effect", "1.0", "-o", tmp_path / "out")
    assert done.code == 0, done.err
    assert "Found to be worse" not in (tmp_path / "out" / "report.html").read_text("utf-8")


def test_the_papers_runs_draw_its_heat_maps() -> None:
    plans = PaperExperiment("gpt2").experiments()
    maps = {name: plan.heat_maps for name, plan in plans.items()}
    assert sum(name.startswith(("ioi", "greater")) for name in maps) == 4
    assert all(
        any("place" in each and "object" in each for each in found)
        for name, found in maps.items()
        if name.startswith("ioi")
    )
    assert all(
        any("noun" in each and "year" in each for each in found)
        for name, found in maps.items()
        if name.startswith("greater")
    )
