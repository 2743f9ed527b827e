"""Cells on a Ray cluster: the same records, limits on the node, and nothing private is sent."""

from __future__ import annotations

import errno
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import ray_cluster
from mechassay.errors import BadUsage, DiskFull
from mechassay.service import cluster, evaluation
from mechassay.service.cell import CHECKED, NO_ROOM, CellOrders
from mechassay.service.cluster import Place, send
from mechassay.service.evaluation import SENT, ClusterAway, Evaluated, evaluate
from mechassay.service.track import ServiceTrack
from small_service import HERE, SEED

NOWHERE = "127.0.0.1:1"
ORDERS = CellOrders(track=ServiceTrack.read(), engine="ray", address=NOWHERE)


@pytest.mark.slow
def test_a_cell_on_a_cluster_is_as_one_here_and_nothing_outlives_it(tmp_path: Path) -> None:
    if reason := ray_cluster.missing():
        pytest.skip(reason)
    ran = ray_cluster.run_script([str(HERE / "service_on_cluster.py"), str(tmp_path)])
    assert ran.returncode == 0, ran.stderr[-3000:]
    same, stopped, long, large = map(json.loads, ran.stdout.splitlines())
    here, there = same["records"]
    assert here == there and len(here) > 5 and all(same["seconds"])
    # A stopped worker gives the cell back; its child and its driver are gone.
    assert stopped["computing"] == [1, 1] and stopped["gone"] < 30
    assert (stopped["state"], stopped["attempts"]) == ("waiting", 0)
    assert long == {
        "how": "too long",
        "message": "took longer than 3 s, the limit of time.",
        "left": 0,
    }
    assert (large["how"], large["left"]) == ("too large", 0)
    assert large["message"].endswith("GB of memory; the limit is 0.05 GB.")


def driven(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch, **about: Any) -> Evaluated:
    """What comes of a cell for a cluster whose driver is a script; one run here fails."""
    driver = (sys.executable, "-c", f"import sys; from pathlib import Path\n{script}")
    monkeypatch.setattr(evaluation, "DRIVER", driver)
    here = (sys.executable, "-c", "import sys; sys.exit('was run here')")
    return evaluate(folder, 0, "a", ORDERS, threading.Event(), command=here, **about)


def says(how: str, message: str, code: int | None) -> str:
    """A script that leaves what a driver writes."""
    end = json.dumps({"how": how, "message": message, "seconds": 2.5, "code": code})
    return f"Path(sys.argv[2], {SENT!r}).write_text({end!r})"


def test_how_a_child_ended_there_is_told_as_if_it_were_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = "held 3 GB of memory; the limit is 2 GB."
    for how, message, code in (
        ("too large", large, None),
        ("died", "its node was lost (ActorDiedError).", None),
        ("ended", "no such cell", 1),
    ):
        found = driven(tmp_path, says(how, message, code), monkeypatch)
        assert found == Evaluated(how, "failed", message, 2.5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DiskFull, match="no room"):
        driven(tmp_path, says("ended", "no room", NO_ROOM), monkeypatch)


def test_a_driver_that_does_not_say_how_a_cell_ended_leaves_it_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What an earlier driver left does not count.
    (tmp_path / SENT).write_text('{"how": "ended", "message": "", "seconds": 1.0, "code": 0}')
    for script in ("sys.exit('the head is lost')", "import os; os._exit(15)", ""):
        with pytest.raises(ClusterAway, match="Driver of a cell on Ray: "):
            driven(tmp_path, script, monkeypatch)


def test_private_cells_are_run_here_and_seeds_are_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def writes(name: str) -> tuple[str, ...]:
        code = f"import sys; open({str(tmp_path / name)!r}, 'w').write(sys.stdin.readline())"
        return (sys.executable, "-c", code)

    monkeypatch.setattr(evaluation, "DRIVER", writes("sent"))
    hidden = ORDERS.model_copy(update={"seed": SEED, "epoch": "now"})
    about = {"private": True, "command": writes("here")}
    evaluate(tmp_path, 0, "a", hidden, threading.Event(), **about)
    assert str(SEED) in (tmp_path / "here").read_text() and not (tmp_path / "sent").exists()
    # A public cell's orders go to the driver, and have none.
    with pytest.raises(ClusterAway):
        evaluate(tmp_path, 0, "a", ORDERS, threading.Event())
    assert '"seed":null' in (tmp_path / "sent").read_text()
    with pytest.raises(BadUsage, match="not sent to a cluster"):
        send(("run", str(tmp_path), "0", "a"), hidden)


def test_a_cluster_that_is_away_is_nobodys_fault(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with pytest.raises(ClusterAway, match="No Ray cluster at '127.0.0.1:1'"):
        send(("run", str(tmp_path), "0", "a"), ORDERS)


class FakeRay:
    """Ray, its actors and their methods, whose answers are those given, or errors to raise."""

    def __init__(self, *answers: Any) -> None:
        import ray

        self.exceptions, self.answers = ray.exceptions, list(answers)
        self.sees = self.run = self

    def remote(self, *_: Any, **__: Any) -> FakeRay:
        return self

    def __call__(self, _: Any) -> FakeRay:
        return self

    def get(self, _: Any, timeout: float) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_before_a_cell_begins_the_cluster_is_to_blame_and_then_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    words, errors = ("run", str(tmp_path), "0", "a"), ray.exceptions
    for answer, said in (
        (errors.GetTimeoutError("late"), "had no place for a cell in 600 s"),
        (errors.ActorDiedError(), "could not begin a cell"),
        (False, "does not see the worker's scratch folder"),
    ):
        monkeypatch.setattr(cluster, "connected", lambda _, answer=answer: FakeRay(answer))
        with pytest.raises(ClusterAway, match=said):
            send(words, ORDERS)
    for error in (errors.ActorDiedError(), errors.GetTimeoutError("late")):
        monkeypatch.setattr(cluster, "connected", lambda _, error=error: FakeRay(True, error))
        end = send(words, ORDERS)
        assert end.how == "died" and end.message == f"its node was lost ({type(error).__name__})."


def test_a_node_that_could_not_run_a_cell_is_no_death_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    words, errors = ("run", str(tmp_path), "0", "a"), ray.exceptions

    def of_task(cause: Exception) -> Exception:
        return errors.RayTaskError("run", f"Traceback: {cause}", cause).as_instanceof_cause()

    refused = of_task(BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"))
    for error, kind, said in (
        (refused, ClusterAway, "could not run a cell: .*temporarily unavailable"),
        (of_task(TypeError("no such field")), ClusterAway, "could not run a cell: no such field"),
        (of_task(OSError(errno.ENOSPC, "No space left")), DiskFull, "No space left"),
        (errors.RaySystemError("broken"), ClusterAway, "did not run a cell: .*broken"),
    ):
        monkeypatch.setattr(cluster, "connected", lambda _, error=error: FakeRay(True, error))
        with pytest.raises(kind, match=said):
            send(words, ORDERS)


def test_a_node_sees_a_folder_that_was_checked(tmp_path: Path) -> None:
    assert not Place().sees(str(tmp_path))
    (tmp_path / CHECKED).touch()
    assert Place().sees(str(tmp_path))
