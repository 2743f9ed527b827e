"""Runs that train SAEs: what stands in the folder, what is refused, the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mechassay.saes.training as trainer_module
from helpers.experiments import SMALL_EXPERIMENTS
from mechassay.errors import BadFile, BadUsage, MechassayError, UnknownName
from mechassay.runs.run import run
from mechassay.saes import load_sae, provenance_of
from mechassay.saes.experiment import SAEExperiment, sae_folder
from mechassay.utils.display import SILENT

JOB: SAEExperiment = replace(SMALL_EXPERIMENTS["saes"], sites=("resid.1",), controls=("random",))


def test_a_run_keeps_its_saes_and_trains_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[int] = []
    real = trainer_module.train_sae

    def counted(store: Any, settings: Any, **rest: Any) -> Any:
        if len(trained) == 1 and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            raise KeyboardInterrupt
        trained.append(settings.seed)
        return real(store, settings, **rest)

    monkeypatch.setattr(trainer_module, "train_sae", counted)
    with pytest.raises(KeyboardInterrupt):
        run(JOB, tmp_path / "run", progress=SILENT)
    results = run(JOB, tmp_path / "run", progress=SILENT)
    assert trained == [0, 1]
    [record] = results.records
    named = {(m.name, m.of) for m in record.measures}
    assert ("shared", "result") in named and ("explained_variance", "control:random") in named
    [cell] = JOB.cells()
    for seed in (0, 1):
        folder = sae_folder(tmp_path / "run", cell.name, seed)
        assert load_sae(folder).hook == "resid.1"
        assert provenance_of(folder)["settings"]["seed"] == seed
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "explained variance of PCA-k" in page


@pytest.mark.parametrize(
    ("changed", "kind", "match"),
    [
        ({"sites": ("residual",)}, BadUsage, "A site is spelled like"),
        ({"controls": ("none",)}, UnknownName, "Unknown controls of saes train 'none'"),
        ({"seeds": ()}, BadUsage, "Draws are seeds"),
        ({"corpus": "sotus"}, UnknownName, "Did you mean 'sotu'"),
        ({"corpus": "/nowhere/at/all.txt"}, BadFile, "no corpus"),
        ({"k": 200}, BadUsage, "keeps 1 to them; got k=200"),
        ({"lr": 0.0}, BadUsage, "lr above 0"),
        ({"window": 17}, MechassayError, "has 16 positions; got a window of 17"),
        ({"sites": ("resid.9",)}, MechassayError, "has layers -1 to 2; got 9"),
    ],
)
def test_mistakes_are_one_line(
    changed: dict[str, Any], kind: type[Exception], match: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=match) as error:
        run(replace(JOB, **changed), tmp_path / "run", progress=SILENT)
    assert "\n" not in str(error.value)


def test_files_of_an_sae_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    from mechassay.cli.main import main

    golden = Path(__file__).parents[1] / "golden" / "saelens" / "topk"
    with pytest.raises(SystemExit) as done:
        main(["saes", "show", str(golden), "--json"])
    said = capsys.readouterr().out
    assert not done.value.code and '"topk"' in said and '"resid.1"' in said
    with pytest.raises(SystemExit) as wrong:
        main(["saes", "show", str(golden.parent)])
    assert wrong.value.code == 2 and "no SAE: there is" in capsys.readouterr().err


def test_activations_of_a_model_in_bfloat16_are_kept_in_it() -> None:
    """It loses nothing, and late layers exceed what float16 holds."""
    assert JOB.store_settings().dtype == "float16"
    assert replace(JOB, dtype="bfloat16").store_settings().dtype == "bfloat16"
