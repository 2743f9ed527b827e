"""Submissions on the hub, against a fake of its client: what is too much is never downloaded."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mechassay.errors import BadFile, BadUsage, MissingExtra
from mechassay.leaderboard.declaration import Declaration
from mechassay.leaderboard.submission import download, open_submission
from mechassay.leaderboard.track import BoardTrack, EvaluatedModel, ModelSizes, UploadLimits

LIMITS = UploadLimits(megabytes=1, files=3)


class FakeHub(ModuleType):
    """huggingface_hub with one repository; it notes what was asked."""

    def __init__(self, sizes: dict[str, int | None]) -> None:
        super().__init__("huggingface_hub")
        self.sizes, self.asked = sizes, list[tuple[Any, ...]]()
        self.HfApi = lambda: SimpleNamespace(model_info=self.model_info)

    def model_info(self, repo: str, *, revision: str | None, files_metadata: bool) -> Any:
        assert files_metadata
        self.asked.append(("info", repo, revision))
        if repo == "me/none":
            raise RuntimeError("404 Client Error\nlong")
        siblings = [SimpleNamespace(rfilename=name, size=n) for name, n in self.sizes.items()]
        return SimpleNamespace(sha="c0ffee", siblings=siblings)

    def snapshot_download(self, repo: str, **how: Any) -> str:
        self.asked.append(("download", repo, how["revision"], tuple(how["allow_patterns"])))
        for name in self.sizes:
            (how["local_dir"] / name).parent.mkdir(parents=True, exist_ok=True)
            (how["local_dir"] / name).write_bytes(b"{}")
        return str(how["local_dir"])


def fake(monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int | None]) -> FakeHub:
    made = FakeHub(sizes)
    monkeypatch.setitem(sys.modules, "huggingface_hub", made)
    return made


def test_data_of_one_commit_is_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Weights of a pickle and code are not asked for, and do not count.
    sizes = {"ioi_gpt2/importances.json": 900_000, "model.bin": 10**9, "run.py": None}
    hub = fake(monkeypatch, sizes)
    assert download("hub:me/it.s@v1.0", tmp_path / "out", LIMITS) == tmp_path / "out"
    info, (what, repo, revision, patterns) = hub.asked
    assert info == ("info", "me/it.s", "v1.0")
    assert (what, repo, revision) == ("download", "me/it.s", "c0ffee")
    assert "*.json" in patterns and not any("py" in pattern for pattern in patterns)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"a.json": 600_000, "b.pt": 600_000}, "2 files, 1 MB; a submission has at most 3 files"),
        ({f"{i}.json": 1 for i in range(4)}, "4 files, 0 MB; a submission has at most 3 files"),
    ],
)
def test_too_much_is_refused_before_it_is_downloaded(
    sizes: dict[str, int | None], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub = fake(monkeypatch, sizes)
    with pytest.raises(BadUsage, match=said):
        download("hub:me/it", tmp_path / "out", LIMITS)
    assert [what for what, *_ in hub.asked] == ["info"] and not (tmp_path / "out").exists()


def test_what_does_not_come(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = fake(monkeypatch, {"model.bin": 5})
    for name in ("hub:me", "hub:../../etc", "hub:me/it/more", "hub:me/it@", "hub:me/it@a b"):
        with pytest.raises(BadUsage, match="is named hub:OWNER/NAME"):
            download(name, tmp_path, LIMITS)
    assert hub.asked == []
    with pytest.raises(BadFile, match=r"did not come from the hub \(404 Client Error\)"):
        download("hub:me/none", tmp_path, LIMITS)
    with pytest.raises(BadFile, match="has no files of data"):
        download("hub:me/it", tmp_path, LIMITS)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mechassay\[hub\]'"):
        download("hub:me/it", tmp_path, LIMITS)


COMMIT = "c0ffee" * 6 + "c0ff"


def test_a_folder_can_name_a_commit_of_the_hub(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    def downloaded(name: str, folder: Path, limits: UploadLimits) -> Path:
        asked.append(name)
        (folder / "ioi_gpt2").mkdir(parents=True)
        (folder / "ioi_gpt2" / "importances.json").write_text("{}")
        (folder / "submission.yaml").write_text("name: as the hub has it\n")
        return folder

    monkeypatch.setattr("mechassay.leaderboard.submission.download", downloaded)
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "submission.yaml").write_text(f"name: mine\nhub: me/it@{COMMIT}\n")
    (tmp_path / "s" / "README.md").write_text("What we did.")
    shape = ModelSizes(n_layers=12, n_heads=12, d_model=768, d_head=64)
    models = {"gpt2": EvaluatedModel(tasks=("ioi",), shape=shape)}
    track = BoardTrack(models=models, upload=LIMITS)
    submission = open_submission(tmp_path / "s", tmp_path / "out", track)
    assert asked == [f"hub:me/it@{COMMIT}"] and submission.folder == tmp_path / "out"
    assert submission.declaration is not None and submission.declaration.name == "mine"
    # What is read is the hub's file, with all that is wrong with it.
    assert [x.path for x in submission.problems.errors] == ["ioi_gpt2/importances.json"]
    (tmp_path / "s" / "ioi_gpt2").mkdir()
    (tmp_path / "s" / "ioi_gpt2" / "a.json").write_text("{}")
    mistakes = open_submission(tmp_path / "s", tmp_path / "again", track).problems.errors
    assert any(x.path == "ioi_gpt2/a.json" and "remove this one" in x.message for x in mistakes)


@pytest.mark.parametrize(
    "text", ["me/it", "me/it@main", f"me/it@{COMMIT[:-1]}", f"../x@{COMMIT}/y"]
)
def test_what_is_no_commit_of_the_hub_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="all 40 digits of the commit"):
        Declaration.of({"name": "mine", "hub": text})
