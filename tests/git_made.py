"""Git repositories whose commits are made of trees, so that no file system decides on names."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ALONE = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
WHO = {
    f"GIT_{who}_{what}": "ann@localhost"
    for who in ("AUTHOR", "COMMITTER")
    for what in ("NAME", "EMAIL")
}


@dataclass(frozen=True)
class MadeRepository:
    """A repository in a folder."""

    folder: Path

    @staticmethod
    def at(folder: Path) -> MadeRepository:
        """A new one."""
        folder.mkdir(parents=True, exist_ok=True)
        made = MadeRepository(folder)
        made.git("init", "--quiet", "--initial-branch=main")
        return made

    def git(self, *words: str, given: bytes = b"", **environment: str) -> str:
        made = subprocess.run(
            ["git", "-C", self.folder, *words],
            input=given,
            capture_output=True,
            env={**os.environ, **ALONE, **WHO, **environment},
        )
        assert made.returncode == 0, made.stderr.decode()
        return made.stdout.decode().strip()

    def blob(self, content: bytes) -> str:
        return self.git("hash-object", "-w", "--stdin", given=content)

    def commit(self, files: dict[str, Any], *parents: str, removed: tuple[str, ...] = ()) -> str:
        """A commit with files beside those of the first parent.

        Args:
            files: content, or (mode, content), or (mode, id of an object), by path.
        """
        index = {"GIT_INDEX_FILE": str(self.folder / "index-made")}
        self.git("read-tree", parents[0] if parents else "--empty", **index)
        for path in removed:
            self.git("rm", "-r", "--cached", "--quiet", "--", path, **index)
        for path, told in files.items():
            mode, content = told if isinstance(told, tuple) else ("100644", told)
            held = self.blob(content) if isinstance(content, bytes) else content
            about = f"{mode},{held},{path}"
            self.git("update-index", "--add", "--cacheinfo", about, **index)
        return self.child(self.git("write-tree", **index), *parents)

    def child(self, tree: str, *parents: str) -> str:
        above = [word for parent in parents for word in ("-p", parent)]
        return self.git("commit-tree", tree, *above, "-m", "change")

    def tree(self, *entries: tuple[str, str, bytes]) -> str:
        """A tree of (mode, id, name) that git itself might refuse to make."""
        raw = b"".join(
            f"{mode.lstrip('0')} ".encode() + name + b"\0" + bytes.fromhex(held)
            for mode, held, name in entries
        )
        return self.git("hash-object", "-t", "tree", "-w", "--literally", "--stdin", given=raw)
