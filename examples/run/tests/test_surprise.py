import math
from dataclasses import replace
from pathlib import Path

import mechassay as ma
from mechassay.testing import check_experiment
from my_run.surprise import SurpriseExperiment

EXPERIMENT = SurpriseExperiment(("truth-ioi",), ("truth-ioi",), limit=12)


def test_it_keeps_the_promises_of_an_experiment(tmp_path: Path) -> None:
    check_experiment(EXPERIMENT, tmp_path, workers=0)


def test_a_model_that_guesses_is_surprised_by_the_size_of_its_vocabulary(tmp_path: Path) -> None:
    model = ma.load_model("truth-ioi")
    model.decoder.unembedding.zero_()
    about = {"models": {"guesses": model}, "tasks": {"own": ma.load_task("truth-ioi")}}
    guessing = replace(EXPERIMENT, models=("guesses",), tasks=("own",))
    (record,) = ma.run(guessing, tmp_path, **about).records
    assert math.isclose(
        record.value("surprise"), math.log2(len(model.decoder.embedding)), rel_tol=1e-6
    )


def test_two_pairs_are_skipped_with_the_reason(tmp_path: Path) -> None:
    report = ma.run(replace(EXPERIMENT, limit=2), tmp_path)
    assert not report.records and len(report.failures) == 1
    assert report.failures[0].status == "skipped" and "needs 5" in report.failures[0].message
