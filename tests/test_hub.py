"""Results on the hub: through the hub's own client, against a stand-in of its API on loopback."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import mechassay as ma
from helpers.hub_stand_in import TOKEN, StandIn, hub_on_loopback, point_at
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.features.featurizer import Identity
from mechassay.features.finder import Fit
from mechassay.hub import pull
from mechassay.interventions.site import load_site
from mechassay.leaderboard.folder import BoardsFolder, StoredBoards
from mechassay.results.records import Check, Record
from mechassay.variables.alignment import VariableAlignment

JOB = ma.CircuitsExperiment(
    models=("truth-ioi",),
    methods=("eap", "random"),
    train_limit=4,
    limit=20,
    metrics=(),
    random_rankings=5,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small run."""
    folder = tmp_path_factory.mktemp("runs") / "own"
    ma.run(JOB, folder)
    return folder


@pytest.fixture
def record(run: Path) -> Record:
    return ma.read_record(run / "records/truth-ioi--truth-ioi/eap.json")


@pytest.fixture
def scores(run: Path) -> EdgeScores:
    return EdgeScores.load(run / "scores/truth-ioi--truth-ioi/eap.safetensors")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StandIn]:
    with hub_on_loopback() as made:
        point_at(made, monkeypatch, tmp_path)
        yield made


def front_matter(card: str) -> tuple[dict[str, Any], str]:
    _, front, body = card.split("---\n", 2)
    return yaml.safe_load(front), body.strip()


def test_values_come_back_as_they_were(hub: StandIn, record: Record, scores: EdgeScores) -> None:
    circuit = scores.top(12).pruned()
    pushed = ma.push_to_hub("me/ioi", circuit, scores, record, license="mit")
    assert pushed.files == (
        "README.md",
        "circuit.safetensors",
        "edge-scores.safetensors",
        "record.json",
    )
    assert ma.from_hub("me/ioi", "circuit.safetensors") == circuit
    assert ma.from_hub("me/ioi", "record.json") == record
    again = ma.from_hub("me/ioi", "edge-scores.safetensors", revision=pushed.revision)
    torch.testing.assert_close(again.values, scores.values, rtol=0, atol=0, equal_nan=True)
    assert again.provenance == scores.provenance
    assert len(hub.large) == 2  # The circuit and the scores; the record is text.
    # Of what is named, nothing else is downloaded.
    assert not [line for line in hub.asked if line.startswith("GET") and "README" in line]
    with pytest.raises(BadUsage, match="holds 3 things to read, name one of them: circuit.safet"):
        ma.from_hub("me/ioi")
    with pytest.raises(UnknownName, match="Did you mean 'circuit.safetensors'"):
        ma.from_hub("me/ioi", "circiut.safetensors")


def test_the_card_begins_with_the_headline_and_says_what_it_is_of(
    hub: StandIn, record: Record, scores: EdgeScores
) -> None:
    ma.push_to_hub(
        "me/ioi",
        scores,
        record.changed(model=record.model.model_copy(update={"name": "gpt2"})),
        license="mit",
    )
    about, body = front_matter(hub.cards[0])
    assert about["library_name"] == "mechassay" and about["license"] == "mit"
    assert about["base_model"] == ["gpt2"]
    assert {"edge-scores", "mechassay-circuits", "mechanistic-interpretability"} <= {*about["tags"]}
    # The page of the record: a sentence with n, then interval and control of the area.
    first = next(line for line in body.splitlines() if "CPR" in line)
    cpr, random = record.measure("cpr"), record.measure("cpr", "control:random")
    assert cpr and random
    assert f"CPR {cpr.value:.2f} [" in first and "random rankings have" in first
    assert "version 1" in body and "strict" in body and record.provenance.data_hash in body
    assert 'ma.from_hub("me/ioi", "edge-scores.safetensors")' in body


def test_the_card_does_not_praise_what_was_not_measured(hub: StandIn, scores: EdgeScores) -> None:
    ma.push_to_hub("me/bare", scores)
    about, body = front_matter(hub.cards[0])
    assert body.startswith("**Nothing was measured of this**")
    assert "license" not in about and "base_model" not in about


def test_the_card_begins_with_controls_that_fail(hub: StandIn, record: Record) -> None:
    broken = Check(name="full", must_be="the model", largest=0.5, n=20, n_wrong=1)
    ma.push_to_hub("me/broken", record.changed(checks=[broken]))
    assert front_matter(hub.cards[0])[1].startswith("**Controls fail: do not use these results.**")


def test_a_run_and_its_failures(hub: StandIn, run: Path, tmp_path: Path) -> None:
    pushed = ma.push_to_hub("me/run", run)
    assert "report.html" in pushed.left_out and "tables.md" in pushed.left_out
    assert not any(name.endswith((".html", ".md")) for name in pushed.files[1:])
    assert "of random edges" in hub.cards[0]
    name = "scores/truth-ioi--truth-ioi/eap.safetensors"
    assert isinstance(ma.from_hub("me/run", name), EdgeScores)
    folder = pull("me/run", tmp_path / "pulled")
    assert (folder / name).read_bytes() == (run / name).read_bytes()
    with pytest.raises(BadUsage, match="something else already"):
        pull("me/run", folder)


def test_a_board(hub: StandIn, run: Path, tmp_path: Path) -> None:
    boards = BoardsFolder.of(run, tmp_path / "board")
    boards.keep_artefacts()
    boards.write()
    ma.push_to_hub("me/board", tmp_path / "board")
    again = ma.from_hub("me/board")
    assert again.cells == StoredBoards.read(tmp_path / "board").cells
    about, body = front_matter(hub.cards[0])
    assert body.startswith("Boards of circuits: ") and "leaderboard" in about["tags"]
    cell = again.find("circuits", "eap/truth-ioi/truth-ioi/cpr")
    assert f"{cell.value:.2f} [" in body
    # What computes a cell again came too.
    assert list((again.folder / "artefacts").glob("*.gz"))


def test_a_fit_and_an_alignment(hub: StandIn, tmp_path: Path) -> None:
    site = load_site("resid.0@last")
    fit = Fit({site: Identity(width=8)}, provenance={"finder": "full"})
    alignment = VariableAlignment("ioi", "subject_token", "me", fit)
    ma.push_to_hub("me/fit", fit)
    assert ma.from_hub("me/fit").sites == (site,)
    ma.push_to_hub("me/both", alignment, fit)
    assert ma.from_hub("me/both", "alignment").variable == "subject_token"
    alignment.save(tmp_path / "own")
    ma.push_to_hub("me/alignment", tmp_path / "own")
    assert ma.from_hub("me/alignment").fit.sites == (site,)


def test_what_is_no_data_is_never_downloaded(hub: StandIn, scores: EdgeScores) -> None:
    ma.push_to_hub("me/ioi", scores)
    hub.commit("me/ioi", {"model.pt": pickle.dumps(print), "run.py": b"1/0", "a.html": b"<script>"})
    hub.asked.clear()
    assert ma.from_hub("me/ioi").graph == scores.graph
    resolved = [line for line in hub.asked if "/resolve/" in line]
    assert resolved and all(line.endswith((".safetensors",)) for line in resolved)
    hub.commit("me/pickled", {"model.pt": pickle.dumps(print)})
    with pytest.raises(BadFile, match="me/pickled: has no files of data"):
        ma.from_hub("me/pickled")


def test_damaged_and_edited_files_are_refused(
    hub: StandIn, record: Record, scores: EdgeScores, tmp_path: Path
) -> None:
    file = record.save(tmp_path / "record.json")
    plain = json.loads(file.read_text("utf-8"))
    plain["measures"][0]["value"] = 0.99
    edited = json.dumps(plain)
    file.write_text(edited)
    with pytest.raises(BadFile, match="was edited"):
        ma.push_to_hub("me/ioi", file)
    assert not hub.repos
    scores.save(tmp_path / "s.safetensors")
    half = (tmp_path / "s.safetensors").read_bytes()[:-8]
    hub.commit("me/edited", {"record.json": edited.encode()})
    hub.commit("me/half", {"s.safetensors": half})
    with pytest.raises(BadFile, match="was edited"):
        ma.from_hub("me/edited")
    with pytest.raises((BadFile, BadUsage)):
        ma.from_hub("me/half", "s.safetensors")


def test_private_examples_stay_private(hub: StandIn, record: Record) -> None:
    test = record.data["test"].model_copy(update={"split": "private"})
    with pytest.raises(BadFile, match="its examples are private"):
        ma.push_to_hub("me/ioi", record.changed(data={**record.data, "test": test}))
    assert not hub.repos


def test_a_card_of_others_is_not_replaced(hub: StandIn, scores: EdgeScores) -> None:
    hub.commit("me/model", {"README.md": b"---\nlicense: mit\n---\n# My model\n"})
    with pytest.raises(BadUsage, match="has a README.md that mechassay did not write"):
        ma.push_to_hub("me/model", scores)
    hub.commit("me/new", {"README.md": b"---\nlicense: mit\n---\n"})
    ma.push_to_hub("me/new", scores)
    first = ma.push_to_hub("me/new", scores, license="mit")  # Its own card it does replace.
    assert hub.at("me/new", "main") == (first.revision, hub.repos["me/new"][first.revision])


def test_refusals_are_one_line(
    hub: StandIn, scores: EdgeScores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ma.push_to_hub("me/ioi", scores)
    pairs = ma.load_task("truth-ioi").pairs("train", ma.load_model("truth-ioi"), limit=2)
    (tmp_path / "model.pt").write_bytes(b"")
    outside = tmp_path / "folder"
    outside.mkdir()
    (outside / "s.json").symlink_to(tmp_path / "model.pt")
    refusals = [
        (lambda: ma.push_to_hub("ioi", scores), "is named OWNER/NAME; got 'ioi'"),
        (lambda: ma.push_to_hub("me/ioi"), "Nothing to push"),
        (lambda: ma.push_to_hub("me/ioi", 3), "got a int"),
        (lambda: ma.push_to_hub("me/ioi", pairs), "A Pairs is saved in a form of its own"),
        (lambda: ma.push_to_hub("me/ioi", scores, scores), "Two parts are called edge-scores"),
        (lambda: ma.push_to_hub("me/ioi", tmp_path / "model.pt"), "a file to push ends in"),
        (lambda: ma.push_to_hub("me/ioi", tmp_path / "none"), "no such file or folder"),
        (lambda: ma.push_to_hub("me/ioi", outside), "a link that leads out"),
        (lambda: ma.push_to_hub("others/ioi", scores), "the hub did not take it (403"),
        (lambda: ma.from_hub("me/none"), "me/none: did not come from the hub (there is no such"),
        (lambda: ma.from_hub("me/ioi", revision="v9"), "it has no such revision"),
    ]
    for call, message in refusals:
        with pytest.raises((BadUsage, BadFile)) as refused:
            call()
        assert message in str(refused.value) and "\n" not in str(refused.value)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(BadFile, match=r"did not take it \(it does not know the token"):
        ma.push_to_hub("me/ioi", scores)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(BadUsage, match="Pushing needs a token of the hub"):
        ma.push_to_hub("me/ioi", scores)


@pytest.mark.slow
def test_the_commands(hub: StandIn, run: Path, tmp_path: Path) -> None:
    """In processes of their own, with the environment alone."""
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "0"}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN}

    def typed(*words: str) -> str:
        program = [sys.executable, "-m", "mechassay", "hub", *words]
        done = subprocess.run(
            program, env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert f"{hub.address}/me/run/commit/" in typed("push", str(run), "me/run", "--license", "mit")
    assert typed("pull", "me/run", "own") == "Written: own\n"
    assert (tmp_path / "own/plan.json").read_bytes() == (run / "plan.json").read_bytes()
