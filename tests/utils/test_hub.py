"""Folders on the hub, against a fake of its client: what is too much is never downloaded."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from mechassay.errors import BadFile, BadUsage, MissingExtra
from mechassay.utils.hub import download

ENDINGS = (".json", ".pt")
LIMITS = (ENDINGS, 3, 10**6)


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
    assert download("hub:me/it.s@v1.0", tmp_path / "out", *LIMITS) == tmp_path / "out"
    info, (what, repo, revision, patterns) = hub.asked
    assert info == ("info", "me/it.s", "v1.0")
    assert (what, repo, revision) == ("download", "me/it.s", "c0ffee")
    assert "*.json" in patterns and not any("py" in pattern for pattern in patterns)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"a.json": 600_000, "b.pt": 600_000}, "2 files, 1 MB; at most 3 files"),
        ({f"{i}.json": 1 for i in range(4)}, "4 files, 0 MB; at most 3 files"),
    ],
)
def test_too_much_is_refused_before_it_is_downloaded(
    sizes: dict[str, int | None], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hub = fake(monkeypatch, sizes)
    with pytest.raises(BadUsage, match=said):
        download("hub:me/it", tmp_path / "out", *LIMITS)
    assert [what for what, *_ in hub.asked] == ["info"] and not (tmp_path / "out").exists()


def test_what_does_not_come(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub = fake(monkeypatch, {"model.bin": 5})
    for name in ("hub:me", "hub:../../etc", "hub:me/it/more", "hub:me/it@", "hub:me/it@a b"):
        with pytest.raises(BadUsage, match="is named hub:OWNER/NAME"):
            download(name, tmp_path, *LIMITS)
    assert hub.asked == []
    with pytest.raises(BadFile, match=r"did not come from the hub \(404 Client Error\)"):
        download("hub:me/none", tmp_path, *LIMITS)
    with pytest.raises(BadFile, match="has no files of data"):
        download("hub:me/it", tmp_path, *LIMITS)
    fake(monkeypatch, {"../outside.json": 2})
    with pytest.raises(BadFile, match=r"'\.\./outside\.json' leads out of the repository"):
        download("hub:me/it", tmp_path, *LIMITS)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra, match=r"pip install 'mechassay\[hub\]'"):
        download("hub:me/it", tmp_path, *LIMITS)
