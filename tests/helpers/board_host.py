"""A host of the repository of a board: a bare origin, pull requests, and its workflows run here.

The steps of a job are executed in their order with bash, as a runner of GitHub Actions does. Of an
expression, the values that an event gives are put in its place; an unknown one is an error. Actions
are played: a checkout is a clone, artefacts and pages are copies. Steps called `Install` are left
out: the package is the one that is tested.

Git repositories whose commits are made of trees, so that no file system decides on names.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
COMPARED = re.compile(r"steps\.(\w+)\.outputs\.(\w+) == '(\w+)'")
SOURCE = Path(__file__).parents[2] / "src"
BASH = ("bash", "--noprofile", "--norc", "-eo", "pipefail")


@dataclass
class JobDone:
    """What a job left behind.

    Attributes:
        code: of the step that failed; 0 if none did.
        log: what all steps printed.
        summary: the page of the run.
        outputs: of steps, by `steps.ID.outputs.NAME`.
        artefact: folder of what was uploaded, if anything was.
    """

    code: int = 0
    log: str = ""
    summary: str = ""
    outputs: dict[str, str] = field(default_factory=dict)
    artefact: Path | None = None


@dataclass
class Host:
    """A host in a folder.

    Attributes:
        folder: holds the bare repository `origin`, the clone `own` of a maintainer, and `pages`.
    """

    folder: Path
    n: int = 0

    @staticmethod
    def of(repository: Path, folder: Path) -> Host:
        """Push the files of a folder to a new repository."""
        own = MadeRepository.at(repository)
        own.git("add", "--all")
        own.git("commit", "--quiet", "-m", "A board")
        own.git("clone", "--quiet", "--bare", str(repository), str(folder / "origin"))
        host = Host(folder)
        own.git("clone", "--quiet", str(folder / "origin"), str(folder / "own"))
        binaries = folder / "bin"
        binaries.mkdir()
        command = binaries / "mechassay"
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mechassay "$@"\n')
        command.chmod(0o755)
        return host

    @property
    def own(self) -> MadeRepository:
        return MadeRepository(self.folder / "own")

    @property
    def main(self) -> str:
        """The newest commit of the main branch."""
        self.own.git("fetch", "--quiet", "origin")
        return self.own.git("rev-parse", "origin/main")

    @property
    def environment(self) -> dict[str, str]:
        """What commands of a runner have."""
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        return {
            **{"PATH": path, "HOME": str(home), "PYTHONPATH": str(SOURCE), "LANG": "C.UTF-8"},
            **{"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
            **ALONE,
        }

    def opened(
        self, files: dict[str, Any], *, removed: tuple[str, ...] = (), on: str = ""
    ) -> dict[str, str]:
        """Open a pull request; the values of its event.

        Args:
            files: as `MadeRepository.commit` has them.
            on: the commit that it is based on; that of main if not given.
        """
        self.n += 1
        head = self.own.commit(files, on or self.main, removed=removed)
        self.own.git("push", "--quiet", "origin", f"{head}:refs/pull/{self.n}/head")
        about = "github.event.pull_request"
        return {
            f"{about}.base.sha": self.main,
            f"{about}.head.sha": head,
            f"{about}.number": str(self.n),
        }

    def pushed(self, head: str) -> dict[str, str]:
        """Push a commit to main; the values of its event."""
        before = self.main
        self.own.git("push", "--quiet", "origin", f"{head}:refs/heads/main")
        return {"github.event.before": before, "github.sha": head}

    def merged(self, event: Mapping[str, str]) -> dict[str, str]:
        """Merge a pull request whose branch has the newest main; the values of the push."""
        head = event["github.event.pull_request.head.sha"]
        return self.pushed(self.own.child(f"{head}^{{tree}}", self.main, head))

    def published(self, event: Mapping[str, str], seeds: str = "") -> list[JobDone]:
        """Run the workflow `publish`, up to the first job that fails."""
        done: list[JobDone] = []
        values = {"secrets.PRIVATE_SEEDS": seeds, **event}
        for job in ("check-change", "publish", "deploy"):
            done.append(self.run("publish", job, values))
            if done[-1].code:
                break
            refused = done[-1].outputs.get("steps.evaluate.outputs.refused", "")
            values["needs.publish.outputs.refused"] = refused
        return done

    def run(self, workflow: str, job: str, event: Mapping[str, str]) -> JobDone:
        """Run a job of the workflow as main has it."""
        text = self.own.git("show", f"{self.main}:.github/workflows/{workflow}.yml")
        about = yaml.safe_load(text)["jobs"][job]
        self.n += 1
        folder = self.folder / f"run-{self.n}-{job}"
        folder.mkdir()
        values = {
            "github.sha": self.main,
            "github.token": "",
            "github.run_id": str(1000 + self.n),
            "github.event.before": "",
            "runner.temp": str(folder),
            **event,
        }
        done = JobDone()
        for step in about["steps"]:
            if step.get("name") == "Install" or not _wanted(step.get("if", ""), done):
                continue
            known = {**values, **done.outputs}
            if "uses" in step:
                given = {k: _put(str(v), known) for k, v in step.get("with", {}).items()}
                self._play(step["uses"].partition("@")[0], given, values, folder, done)
                continue
            assert not EXPRESSION.search(step["run"]), "an expression in a shell's text"
            stated = {**about.get("env", {}), **step.get("env", {})}
            told = {name: _put(str(value), known) for name, value in stated.items()}
            self._execute(step, told, folder, done)
        return done

    def _execute(
        self, step: Mapping[str, Any], told: Mapping[str, str], folder: Path, done: JobDone
    ) -> None:
        outputs, summary = folder / "outputs", folder / "summary"
        outputs.write_text("")
        script = folder / "step.sh"
        script.write_text(step["run"])
        files = {"GITHUB_OUTPUT": str(outputs), "GITHUB_STEP_SUMMARY": str(summary)}
        ran = subprocess.run(
            [*BASH, str(script)],
            cwd=folder / "work",
            env={**self.environment, **told, **files},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=1800,
        )
        done.log += ran.stdout
        done.code = done.code or ran.returncode
        done.summary = summary.read_text() if summary.exists() else ""
        for line in outputs.read_text().splitlines():
            name, _, value = line.partition("=")
            done.outputs[f"steps.{step['id']}.outputs.{name}"] = value

    def _play(
        self,
        action: str,
        given: Mapping[str, str],
        values: Mapping[str, str],
        folder: Path,
        done: JobDone,
    ) -> None:
        if action == "actions/checkout":
            assert given["persist-credentials"] == "False"
            work = MadeRepository(self.folder)
            work.git("clone", "--quiet", str(self.folder / "origin"), str(folder / "work"))
            commit = given.get("ref") or values["github.sha"]
            MadeRepository(folder / "work").git("checkout", "--quiet", "--detach", commit)
        elif action == "actions/upload-artifact":
            if (folder / "work" / given["path"]).exists():
                done.artefact = folder / "artefact"
                shutil.copytree(folder / "work" / given["path"], done.artefact)
        elif action == "actions/upload-pages-artifact":
            shutil.rmtree(self.folder / "uploaded", ignore_errors=True)
            shutil.copytree(folder / "work" / given["path"], self.folder / "uploaded")
        elif action == "actions/deploy-pages":
            shutil.rmtree(self.folder / "pages", ignore_errors=True)
            (self.folder / "uploaded").rename(self.folder / "pages")
            (folder / "work").mkdir()
        else:
            assert action == "actions/setup-python", action


def _put(text: str, values: Mapping[str, str]) -> str:
    return EXPRESSION.sub(lambda found: _value(found[1], values), text)


def _value(name: str, values: Mapping[str, str]) -> str:
    # A step that wrote no such output has an empty one; all other names have to be known.
    return values.get(name, "") if name.startswith("steps.") else values[name]


def _wanted(condition: str, done: JobDone) -> bool:
    """Whether a step is run; the conditions are those that the workflows have."""
    inner = condition.removeprefix("${{").removesuffix("}}").strip()
    always = inner.startswith("!cancelled() && ")
    inner = inner.removeprefix("!cancelled() && ")
    if done.code and not always:
        return False
    if not inner:
        return True
    found = COMPARED.fullmatch(inner)
    assert found, f"a condition that is not played: {condition}"
    return done.outputs.get(f"steps.{found[1]}.outputs.{found[2]}") == found[3]


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
