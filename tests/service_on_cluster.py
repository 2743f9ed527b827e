"""Cells of the service on a Ray cluster of this machine: `service_on_cluster.py FOLDER`.

It prints a line of JSON for each of: the record of a cell here and on the cluster, cells over a
limit, and a worker that is stopped while the cluster computes.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster

from mechassay.service import checks
from mechassay.service.cell import CHECKED, CellOrders, check
from mechassay.service.cluster import send
from mechassay.service.track import CellLimits, ServiceTrack
from mechassay.service.work import PlannedEvaluation
from mechassay.service.worker import ServiceWorker, WorkerOptions
from small_service import Served, circuits_archive, without_times

SECONDS = 200.0


def say(**found: Any) -> None:
    print(json.dumps(found), flush=True)


def until(true: Callable[[], bool]) -> float:
    """The seconds that it took to come true."""
    begin = time.monotonic()
    while not true():
        if time.monotonic() - begin > SECONDS:
            raise TimeoutError("it did not come true")
        time.sleep(0.05)
    return time.monotonic() - begin


def children(word: str) -> list[int]:
    """Processes of a cell, or of its driver, wherever they were started."""
    found: list[int] = []
    for process in psutil.process_iter():
        try:
            words, ended = process.cmdline(), process.status() == psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if not ended and f"mechassay.service.{word}" in words and words[-1].startswith("truth-"):
            found.append(process.pid)
    return found


def begun(served: Served, checked: Path, options: WorkerOptions) -> tuple[ServiceWorker, str]:
    """A worker that has unpacked a submission, and the submission, whose cell waits."""
    archive = checked / "upload"
    submission = served.submit(archive)
    claimed = checks.claim_check(served.db, "other", 60.0)
    assert claimed is not None
    cells = json.loads((checked / CHECKED).read_text("utf-8"))["cells"]
    planned = [PlannedEvaluation(each["job"], each["cell"]) for each in cells]
    assert len(planned) == 1 and checks.checked(served.db, claimed, "other", [], planned)
    worker = ServiceWorker(served.settings, options)
    shutil.copytree(checked, worker.folder / submission)
    return worker, submission


def never_ends(folder: Path) -> None:
    """Turn the plan of a submission's job into a pipe, from which a cell waits to read it."""
    plan = folder / "jobs" / "0" / "plan.json"
    plan.unlink()
    os.mkfifo(plan)


def main(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    address = str(cluster.address)
    on_ray = WorkerOptions(engine="ray", address=address, threads=1)

    checked = folder / "checked"
    checked.mkdir(parents=True)
    circuits_archive(folder / "one.zip").rename(checked / "upload")
    track = ServiceTrack.read(Served.at(folder / "track").settings.track)
    orders = CellOrders(track=track, engine="ray", address=address)
    (cell,) = check(checked, orders).cells

    records: list[dict[str, Any]] = []
    seconds: list[float | None] = []
    for engine, options in (("here", WorkerOptions(threads=1)), ("ray", on_ray)):
        served = Served.at(folder / engine)
        worker, submission = begun(served, checked, options)
        assert worker.step()
        records += map(without_times, served.records(submission, folder / f"{engine}-records"))
        seconds += [each.seconds for each in served.evaluations(submission)]
    say(records=records, seconds=seconds)

    served = Served.at(folder / "stopped")
    worker, submission = begun(served, checked, on_ray)
    never_ends(worker.folder / submission)
    step = threading.Thread(target=worker.step)
    step.start()
    until(lambda: bool(children("cell")))
    computing = len(children("cell")), len(children("cluster"))
    worker.stop.set()
    gone = until(lambda: not children("cell") and not children("cluster"))
    step.join(SECONDS)
    (held,) = served.evaluations(submission)
    say(computing=computing, gone=gone, state=held.state, attempts=held.attempts)

    never_ends(checked)
    words = ("run", str(checked), str(cell.job), cell.cell)
    for limits in (CellLimits(seconds=3), CellLimits(memory_gb=0.05)):
        narrow = orders.model_copy(update={"track": track.model_copy(update={"cell": limits})})
        end = send(words, narrow)
        say(how=end.how, message=end.message, left=len(children("cell")))
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
