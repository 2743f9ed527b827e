"""`tools/reach.py` on a small package: what it calls unreached, and what not."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "reach.py"
FILES = {
    "src/mechassay/__init__.py": '"""The package."""\nfrom mechassay.core import handed_on\n',
    "src/mechassay/cli/main.py": (
        "from mechassay.core import Used\n\n\n"
        '@app.command("run")\ndef run() -> None:\n    """Names unused in prose."""\n'
        "    Used().called()\n"
    ),
    "src/mechassay/core.py": (
        "LIMIT = 3\nOTHER = 4\n\n\n"
        "class Used:\n"
        "    def called(self) -> int:\n        return LIMIT\n\n"
        "    def uncalled(self) -> int:\n        return helper()\n\n"
        "    def __len__(self) -> int:\n        return 0\n\n\n"
        "class Unused:\n    def called(self) -> int:\n        return 0\n\n\n"
        "def helper() -> int:\n    return OTHER\n\n\n"
        "def documented() -> None:\n    by_page()\n\n\n"
        "def by_page() -> None: ...\n\n\n"
        "def handed_on() -> None: ...\n"
    ),
    "docs/page.md": "Call `mechassay.documented()`.\n",
    "README.md": "",
    "CONTRIBUTING.md": "",
    "tests/test_core.py": "from mechassay.core import helper\nhelper()\n",
}


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("reach", TOOL)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "reach", module)
    spec.loader.exec_module(module)
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    module.ROOT, module.PACKAGE = tmp_path, tmp_path / "src/mechassay"
    return module


def test_what_only_tests_or_nothing_calls_is_unreached(tool: Any) -> None:
    names = {definition.title for definition in tool.unreached()}
    assert names == {
        *("core.py:OTHER", "core.py:helper", "core.py:handed_on", "core.py:Used.uncalled"),
        *("core.py:Unused", "core.py:Unused.called"),
    }


def test_the_check_fails_for_what_is_no_exception(
    tool: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="Nothing reaches these"):
        tool.main()
    assert "core.py:helper" in capsys.readouterr().out
    tool.EXCEPTIONS.update({x.title: "kept for the test" for x in tool.unreached()})
    tool.main()
    tool.EXCEPTIONS["core.py:LIMIT"] = "reached in the meantime"
    with pytest.raises(SystemExit):
        tool.main()
    assert "core.py:LIMIT is reached, and is no exception." in capsys.readouterr().out
