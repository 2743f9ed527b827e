"""Executors: the same results to the last bit wherever cells are done, whoever is killed.

Cells with limits of time and memory: each in a process of its own, whatever it does.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from helpers import ray_cluster
from helpers.misbehaving_experiment import MisbehavingExperiment
from mechassay.adversarial.experiments import AdversarialExperiment
from mechassay.circuits import EdgeScores
from mechassay.circuits.methods import METHODS
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.errors import BadFile, BadUsage, DiskFull, MechassayError
from mechassay.models.computing import computing
from mechassay.models.sources import check_sources
from mechassay.runs import executors
from mechassay.runs.cells import Cell, cell_name
from mechassay.runs.executors import (
    CellLimits,
    Here,
    Processes,
    Ray,
    devices_of_workers,
    measure_cells,
)
from mechassay.runs.experiment import experiment_of, plan_of
from mechassay.runs.folder import RunFolder
from mechassay.runs.run import opened, part_of, read_report, run
from mechassay.runs.worker import Worker
from mechassay.utils.display import SILENT

MODELS = ("truth-ioi", "truth-induction")


def experiment(**changes: Any) -> CircuitsExperiment:
    settings: dict[str, Any] = {
        "models": MODELS,
        "methods": ("eap", "random"),
        "random_rankings": 5,
    }
    return CircuitsExperiment(**{**settings, **changes}, train_limit=6, limit=8)


def numbers(folder: Path) -> dict[str, Any]:
    """Everything of the records of a folder but when and how fast they were made."""
    found: dict[str, Any] = {}
    for file in sorted((folder / "records").rglob("*.json")):
        record = json.loads(file.read_text())
        for name in ("provenance", "spent", "sha256"):
            record.pop(name)
        found[str(file.relative_to(folder))] = record
    return found


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("here") / "out"
    n_threads = torch.get_num_threads()
    # As many as each of several processes has.
    torch.set_num_threads(1)
    run(experiment(), out, progress=SILENT)
    torch.set_num_threads(n_threads)
    return out


@pytest.mark.guard
def test_processes_give_the_same_bits(reference: Path, tmp_path: Path) -> None:
    run(experiment(), tmp_path / "out", executor=Processes(2), progress=SILENT)
    assert numbers(tmp_path / "out") == numbers(reference)
    name = "scores/truth-ioi--truth-ioi/eap.safetensors"
    ours, theirs = EdgeScores.load(tmp_path / "out" / name), EdgeScores.load(reference / name)
    assert torch.equal(ours.values.nan_to_num(7.0), theirs.values.nan_to_num(7.0))


@pytest.mark.parametrize(
    ("device", "n_gpus", "devices"),
    [
        ("cuda", 2, ["cuda:0", "cuda:1", "cuda:0"]),
        ("auto", 8, ["cuda:0", "cuda:1", "cuda:2"]),
        ("cuda:1", 2, ["cuda:1"] * 3),
        ("auto", 0, ["auto"] * 3),
        ("cpu", 2, ["cpu"] * 3),
    ],
)
def test_each_worker_has_a_gpu(
    device: str, n_gpus: int, devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus)
    assert devices_of_workers(device, 3) == devices


@pytest.mark.guard
@pytest.mark.parametrize("limits", [None, CellLimits(seconds=200, memory_gb=8)])
def test_workers_get_devices_and_how_to_compute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: CellLimits | None
) -> None:
    monkeypatch.setattr(executors, "devices_of_workers", lambda device, n: ["cpu:0", "cpu:1"])
    experiment, worker = MisbehavingExperiment(("one", "two", "three")), Worker(RunFolder(tmp_path))
    with computing("on"):
        Processes(2, limits).map(experiment, [[cell] for cell in experiment.cells()], worker)
    records = [worker.folder.record(cell.name) for cell in experiment.cells()]
    given = {record.provenance.device for record in records if record is not None}
    assert given <= {"cpu:0", "cpu:1"} and (limits is None or len(given) == 2)
    assert [record.provenance.tf32 for record in records if record is not None] == ["on"] * 3


@pytest.mark.guard
def test_one_cell_has_all_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More workers than cells: the pairs of the cell are in two processes, and nothing changes."""
    alone = experiment(models=("truth-ioi",), methods=("eap",))
    alone = dataclasses.replace(alone, train_limit=16)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run(alone, tmp_path / "here", progress=SILENT)
        run(alone, tmp_path / "there", executor=Processes(2), progress=SILENT)
    finally:
        torch.set_num_threads(threads)
    assert numbers(tmp_path / "here") == numbers(tmp_path / "there")


@pytest.mark.guard
def test_parts_give_the_same_bits_and_leave_the_rest(reference: Path, tmp_path: Path) -> None:
    every = experiment().cells()
    worker = opened(experiment(), tmp_path / "out", progress=SILENT)
    Here().map(experiment(), part_of(every, "2/2"), worker)
    first = numbers(tmp_path / "out")
    assert set(first) == {name for name in numbers(reference) if "induction" in name}
    Here().map(experiment(), part_of(every, "1/2"), worker)
    assert numbers(tmp_path / "out") == numbers(reference)


def test_objects_stay_in_this_process(tmp_path: Path) -> None:
    from mechassay.models.model import load_model

    model = load_model("truth-ioi")
    own = experiment(models=("mine",), tasks=("truth-ioi",), methods=("random",))
    results = run(own, tmp_path / "a", models={"mine": model}, progress=SILENT)
    assert results.records[0].model.name == "mine"
    with pytest.raises(BadUsage, match="stay in this process"):
        run(own, tmp_path / "b", models={"mine": model}, executor=Processes(2), progress=SILENT)
    with pytest.raises(BadUsage, match="does not name"):
        run(own, tmp_path / "c", models={"other": model}, progress=SILENT)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "a/b", "1/0", ""])
def test_a_part_that_there_is_not(part: str) -> None:
    with pytest.raises(BadUsage, match="A part is written 3/16"):
        part_of([], part)


def test_every_batch_is_in_one_part() -> None:
    cells = [Cell(str(number), {}, str(number)) for number in range(7)]
    for count in (1, 3, 7, 9):
        parts = [part_of(cells, f"{number}/{count}") for number in range(1, count + 1)]
        names = [cell.name for part in parts for cells in part for cell in cells]
        assert sorted(names) == sorted(map(str, range(7)))


def test_a_stored_plan_is_the_experiment_again(tmp_path: Path) -> None:
    before = experiment(private_seed=5, max_minutes=3.0)
    plan = json.loads(json.dumps(plan_of(before, Worker(RunFolder(tmp_path)))))
    assert "private_seed" not in plan
    assert experiment_of(plan, private_seed=5) == before


def test_a_plan_has_the_versions_of_what_it_names(tmp_path: Path) -> None:
    plan = plan_of(experiment(methods=("eap", "eap:backward=gim")), Worker(RunFolder(tmp_path)))
    assert plan["definitions"] == {"method eap": METHODS.make("eap").version}


def test_a_plan_has_no_fields_of_other_experiments(tmp_path: Path) -> None:
    plan = plan_of(
        AdversarialExperiment("truth-ioi", "truth-ioi", ("full",)), Worker(RunFolder(tmp_path))
    )
    with pytest.raises(BadUsage, match="kind adversarial has no private_seed"):
        experiment_of(plan, private_seed=1)


def test_one_method_spelled_in_two_ways_is_one_cell() -> None:
    cells = experiment(
        models=("truth-ioi",), methods=("eap-ig-inputs", "eap-ig-inputs:steps=5")
    ).cells()
    assert [cell.labels["method"] for cell in cells] == ["eap-ig-inputs"]


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (("truth-io",), "Did you mean 'truth-ioi'"),
        (("/nowhere/a", "nope"), "/nowhere/a: there is no such folder"),
    ],
)
def test_models_that_do_not_exist_leave_no_folder(
    models: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    experiment = CircuitsExperiment(models, ("ioi",), methods=("eap",))
    with pytest.raises(MechassayError, match=message):
        run(experiment, tmp_path / "out", progress=SILENT)
    assert list(tmp_path.iterdir()) == []
    # One that exists, or is given as an object, is reason enough to begin.
    check_sources((*models, "truth-ioi"))
    check_sources(models, given=models)


def test_nothing_to_do_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadUsage, match="Name a method or a score file"):
        run(experiment(methods=()), tmp_path / "out", progress=SILENT)
    assert not (tmp_path / "out").exists()


@pytest.mark.guard
def test_a_killed_worker_costs_its_cell_one_more_try(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(out, "--workers", "2", "-M", "exact", "--seed", "1")
    wait_for(out, "records/*/*.json", process)
    workers = [pid for pid in children(process.pid) if "spawn_main" in command_of(pid)]
    for pid in workers[:1]:
        os.kill(pid, signal.SIGKILL)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert len(list(out.glob("records/*/*.json"))) == 3 * len(MODELS)


@pytest.mark.guard
@pytest.mark.parametrize("deaths", [1, 2, 3])
def test_workers_that_die_are_begun_three_times_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    begun: list[int] = []

    def once(pool: Processes, experiment: Any, batches: Any, worker: Worker, *start: Any) -> None:
        """Do one cell; die, or do the others too."""
        cells = [cell for batch in batches for cell in batch]
        begun.append(len(cells))
        dies = len(begun) <= deaths
        measure_cells(experiment, cells[: 1 if dies else None], worker)
        if dies:
            raise BrokenProcessPool

    monkeypatch.setattr(Processes, "_map_once", once)
    four = experiment(methods=("eap", "random"))
    if deaths < 3:
        results = run(four, tmp_path, executor=Processes(2), progress=SILENT)
        assert len(results.records) == 4 and begun == [4, 3, 2][: deaths + 1]
    else:
        with pytest.raises(MechassayError, match="without a word, 3 times"):
            run(four, tmp_path, executor=Processes(2), progress=SILENT)
        assert begun == [4, 3, 2]


@pytest.mark.guard
@pytest.mark.parametrize("keep", [0, 40])
def test_a_record_that_was_cut_off_is_set_aside_and_made_again(tmp_path: Path, keep: int) -> None:
    two = experiment(methods=("eap",), random_rankings=5)
    first = run(two, tmp_path / "run", progress=SILENT)
    before = numbers(tmp_path / "run")
    file = RunFolder(first.folder).record_file(two.cells()[0].name)
    whole = file.read_bytes()
    file.write_bytes(whole[:keep])
    with pytest.warns(UserWarning, match="was cut off: its cell is measured again"):
        run(two, tmp_path / "run", progress=SILENT)
    assert numbers(tmp_path / "run") == before
    (aside,) = file.parent.glob("*.cut-off-*")
    assert aside.read_bytes() == whole[:keep]
    # One that was edited is refused as before: it is no accident.
    file.write_bytes(whole.replace(b'"eap"', b'"ifr"'))
    with pytest.raises(BadFile, match="was edited"):
        run(two, tmp_path / "run", progress=SILENT)


def children(parent: int) -> list[int]:
    done = subprocess.run(["pgrep", "-P", str(parent)], capture_output=True, text=True, check=False)
    return [int(word) for word in done.stdout.split()]


def command_of(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_text()
    except OSError:
        return ""


def test_names_of_cells_are_files_and_differ() -> None:
    assert cell_name("smollm2-135m", "ioi") == "smollm2-135m--ioi"
    paths = [cell_name(name, "ioi") for name in ("/a/b", "_a_b", "/a_b", "../a/b", "a" * 300)]
    assert len(set(paths)) == len(paths)
    assert all("/" not in name and not name.startswith(".") for name in paths)
    assert all(len(name) < 200 for name in paths)


# Whoever is killed

START = """
import sys
from mechassay.cli.main import main
main(sys.argv[1:])
"""


def start(out: Path, *more: str) -> subprocess.Popen[str]:
    words = ["circuits", "run", "-o", str(out), "--train-limit", "6", "--limit", "8", *more]
    words += ["--random-rankings", "5"]
    for model in MODELS:
        words += ["-m", model]
    words += ["-M", "eap", "-M", "random"]
    return subprocess.Popen(
        [sys.executable, "-c", START, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for(out: Path, pattern: str, process: subprocess.Popen[str], n: int = 1) -> None:
    deadline = time.monotonic() + 180
    while len(list(out.glob(pattern))) < n:
        assert time.monotonic() < deadline, "nothing came in time"
        if process.poll() is not None:
            return
        time.sleep(0.02)


@pytest.mark.guard
def test_a_killed_pool_is_taken_up(reference: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(out, "--workers", "2")
    wait_for(out, "records/*/*.json", process)
    os.kill(process.pid, signal.SIGKILL)
    # Workers see that their parent is gone and end: nobody holds its pipes then.
    process.communicate(timeout=60)
    before = {file: file.stat().st_mtime_ns for file in out.glob("records/*/*.json")}
    again = start(out, "--workers", "2")
    shown = again.communicate(timeout=300)
    assert again.returncode == 0, shown
    assert numbers(out) == numbers(reference)
    assert all(file.stat().st_mtime_ns == when for file, when in before.items())


# A cluster


CLUSTER = """
import json, sys, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from mechassay.adversarial.experiments import AdversarialExperiment
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.runs.folder import RunFolder
from mechassay.runs.run import run
from mechassay.runs.executors import Ray
from mechassay.utils.display import SILENT

out, how = Path(sys.argv[1]), sys.argv[2]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
second = cluster.add_node(num_cpus=1)
cluster.wait_for_nodes()
models = ("truth-ioi", "truth-induction", "truth-previous-token")
limits = {"train_limit": 6, "limit": 8, "random_rankings": 5}
experiment = CircuitsExperiment(models=models, methods=("eap", "random"), **limits)
if how != "whole":
    import threading

    def kill():
        while len(list(out.glob("records/*/*.json"))) < 2:
            time.sleep(0.01)
        cluster.remove_node(second if how == "node" else cluster.head_node, allow_graceful=False)

    threading.Thread(target=kill, daemon=True).start()
run(experiment, out, executor=Ray(cluster.address, workers=2), progress=SILENT)
print("done")
ray.shutdown()
cluster.shutdown()
"""


@pytest.fixture
def ray_runs() -> None:
    """Skips where no cluster can be started at all."""
    if reason := ray_cluster.missing():
        pytest.skip(reason)


@pytest.mark.guard
@pytest.mark.usefixtures("ray_runs")
def test_a_cluster_gives_the_same_bits_and_survives_a_lost_node_and_a_lost_head(
    tmp_path: Path,
) -> None:
    names = ("truth-ioi", "truth-induction", "truth-previous-token")
    run(experiment(models=names), tmp_path / "here", progress=SILENT)
    expected = numbers(tmp_path / "here")

    node = ray_cluster.run_script(["-c", CLUSTER, str(tmp_path / "node"), "node"])
    assert "done" in node.stdout, node.stderr
    assert numbers(tmp_path / "node") == expected

    ray_cluster.run_script(["-c", CLUSTER, str(tmp_path / "head"), "head"])
    partly = {file: file.stat().st_mtime_ns for file in tmp_path.glob("head/records/*/*.json")}
    assert partly
    again = ray_cluster.run_script(["-c", CLUSTER, str(tmp_path / "head"), "whole"])
    assert "done" in again.stdout, again.stderr
    assert numbers(tmp_path / "head") == expected
    assert all(file.stat().st_mtime_ns == when for file, when in partly.items())


@pytest.mark.guard
@pytest.mark.usefixtures("ray_runs")
def test_where_no_cluster_runs_a_local_one_is_started_and_said(tmp_path: Path) -> None:
    words = ["circuits", "run", "-m", "truth-ioi", "-M", "random", "--limit", "20"]
    program = [sys.executable, "-m", "mechassay", *words, "-o", "run", "--engine", "ray"]
    ended = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert "No Ray cluster runs here: a local one is started." in ended.stderr
    assert list((tmp_path / "run").glob("records/*/random.json"))


def test_no_cluster_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    with pytest.raises(BadUsage, match="workers must be 1 or more"):
        Ray(workers=0)
    # Ray itself waits for minutes, and ends the process.
    begin = time.monotonic()
    with pytest.raises(BadUsage, match="No Ray cluster at '127.0.0.1:1': "):
        run(experiment(), tmp_path / "runs", executor=Ray("127.0.0.1:1"), progress=SILENT)
    assert time.monotonic() - begin < 60


WIDE = CellLimits(seconds=120, memory_gb=8)


def done(folder: Path, *does: str, limits: CellLimits = WIDE, workers: int = 1) -> RunFolder:
    """The folder of cells that were done."""
    experiment, worker = MisbehavingExperiment(does), Worker(RunFolder(folder), progress=SILENT)
    Processes(workers, limits).map(experiment, [experiment.cells()], worker)
    return worker.folder


def failure(folder: RunFolder, cell: str) -> tuple[str, str]:
    """The kind of a failure, and what it says."""
    told = folder.failure(cell)
    assert told is not None and folder.record(cell) is None
    return told.error, told.message


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.guard
def test_a_cell_is_ended_when_its_time_is_over_and_what_is_done_is_kept(tmp_path: Path) -> None:
    done(tmp_path, "is done")
    folder = done(tmp_path, "sleeps", limits=CellLimits(seconds=4, memory_gb=8))
    assert failure(folder, "sleeps") == ("TimeLimit", "took longer than 4 s, the limit of time.")
    assert folder.record("is done") is not None
    begun = tmp_path / "sleeps.pid"
    assert not begun.exists() or is_gone(int(begun.read_text()))


@pytest.mark.guard
@pytest.mark.parametrize("does", ["holds", "starts one that holds"])
def test_memory_is_that_of_a_process_and_all_that_it_starts(does: str, tmp_path: Path) -> None:
    limits = CellLimits(seconds=120, memory_gb=0.9)
    folder = done(tmp_path, does, "is done", limits=limits)
    kind, message = failure(folder, does)
    assert kind == "MemoryLimit" and message.endswith("GB, more than 0.9 GB, the limit of memory.")
    assert folder.record("is done") is not None
    assert is_gone(int((tmp_path / f"{does}.pid").read_text()))
    assert not [
        p for p in psutil.Process().children(recursive=True) if "bytearray" in str(p.cmdline())
    ]


@pytest.mark.guard
def test_a_cell_that_dies_or_raises_fails_alone(tmp_path: Path) -> None:
    folder = done(tmp_path, "dies", "raises", "is done", workers=3)
    assert failure(folder, "dies") == (
        "Died",
        "its process ended with signal 9; memory may have run out.",
    )
    assert failure(folder, "raises") == ("ValueError", "a mistake of its own")
    assert folder.record("is done") is not None


@pytest.mark.guard
def test_a_full_disk_is_not_the_fault_of_a_cell(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match="had no room"):
        done(tmp_path, "is full")
    assert not (tmp_path / "failures").exists()


@pytest.mark.guard
def test_processes_of_a_killed_parent_end(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from pathlib import Path\n"
        "from tests.runs.test_executors import done\n"
        "if __name__ == '__main__':\n"
        "    done(Path(sys.argv[1]), 'sleeps', 'is done', workers=2)\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    root = Path(__file__).parents[2]
    paths = [str(root / "src"), str(root / "tests"), str(root)]
    parent = subprocess.Popen([sys.executable, str(script), str(tmp_path), *paths])
    try:
        pid = tmp_path / "sleeps.pid"
        deadline = time.monotonic() + 90
        while not (pid.is_file() and pid.read_text() and (tmp_path / "records").is_dir()):
            assert time.monotonic() < deadline and parent.poll() is None
            time.sleep(0.1)
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
    deadline = time.monotonic() + 30
    while not is_gone(int(pid.read_text())):
        assert time.monotonic() < deadline, "the process of a cell goes on"
        time.sleep(0.1)
    # What was done is kept, and the same command does the rest.
    assert RunFolder(tmp_path).record("is done") is not None
    assert not multiprocessing.active_children()


def test_results_show_the_others_where_a_record_is_refused(tmp_path: Path) -> None:
    experiment, folder = MisbehavingExperiment(("one", "two")), RunFolder(tmp_path)
    Here().map(experiment, [experiment.cells()], Worker(folder, progress=SILENT))
    file = folder.record_file("one")
    file.write_text(file.read_text().replace("float32", "float64"))
    results = read_report(folder, experiment.cells())
    assert list(results.by_name) == ["two"]
    [failure] = results.failures
    assert failure.error == "BadFile" and f"{file}: was edited" in failure.message
    assert f"failed: {file}: was edited" in results._repr_html_()  # pyright: ignore[reportPrivateUsage]
