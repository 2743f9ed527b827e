"""The driver of a cell on a Ray cluster: `python -m mechassay.service.cluster run FOLDER JOB CELL`.

It asks for a place on a node. There the child of `service.cell` is run and watched as a worker runs
and watches one here: so the limits of time and memory hold on the node, for the same process, and
are said in the same words. The wait for a place is not part of the cell's time. How the child ended
is written to FOLDER/sent.json; without that file the cluster is to blame, and the cell waits again.
A node that is lost while it computes counts as a death of the child. A node that could not begin
the child, or watch it, does not.

Nothing goes on when this process is gone. Ray ends the actors of a driver that is lost, the child
ends with its standard input, and where Ray does not hear of it, its limit of time ends it.

All nodes have to see the worker's scratch folder under the same path. The orders are those of
`service.cell`, without a seed: a cluster keeps what it is told.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mechassay.errors import BadUsage, DiskFull, MechassayError, first_line
from mechassay.files import is_full, write_text
from mechassay.runs.ray import connected
from mechassay.service.cell import CHECKED, NO_ROOM, CellOrders, read_orders
from mechassay.service.evaluation import ANSWER, PLACE, SENT, ChildEnd, ClusterAway, watch_child


class Place:
    """What an actor is: a place on a node, for one child."""

    def sees(self, folder: str) -> bool:
        """Whether the node sees a folder of a submission."""
        return (Path(folder) / CHECKED).is_file()

    def run(self, words: Sequence[str], orders: CellOrders) -> ChildEnd:
        """Run a child within the limits of a cell; how it ended."""
        return watch_child(words, orders, orders.track.cell, threading.Event())


def send(words: Sequence[str], orders: CellOrders) -> ChildEnd:
    """Run a child on the cluster; how it ended there.

    Args:
        words: of the child, such as ("run", FOLDER, JOB, CELL).

    Raises:
        BadUsage: there is a seed of private examples in the orders.
        ClusterAway: there is no cluster, it has no place, does not see the folder, or could not
            begin or watch the child.
        DiskFull: its node has no room.
        MissingExtra: Ray is not installed.
    """
    if orders.seed is not None:
        raise BadUsage("Cells with a seed of private examples are not sent to a cluster.")
    try:
        ray = connected(orders.address)
    except BadUsage as error:
        raise ClusterAway(str(error)) from None
    places = ray.remote(num_cpus=orders.num_cpus, num_gpus=orders.num_gpus)(Place)
    place = places.remote()
    try:
        sees = ray.get(place.sees.remote(words[1]), timeout=PLACE)
    except ray.exceptions.GetTimeoutError:
        raise ClusterAway(f"The Ray cluster had no place for a cell in {PLACE:g} s.") from None
    except ray.exceptions.RayError as error:
        raise ClusterAway(f"The Ray cluster could not begin a cell: {first_line(error)}") from error
    if not sees:
        raise ClusterAway("A node of the Ray cluster does not see the worker's scratch folder.")
    told = orders.model_copy(update={"threads": orders.num_cpus})
    try:
        return ray.get(place.run.remote(words, told), timeout=orders.track.cell.seconds + ANSWER)
    except ray.exceptions.RayTaskError as error:  # The node lives, and `Place.run` failed.
        said = f"A node of the Ray cluster could not run a cell: {first_line(error.cause)}"
        raise (DiskFull if is_full(error.cause) else ClusterAway)(said) from error
    except _lost(ray) as error:
        return ChildEnd("died", f"its node was lost ({type(error).__name__}).", 0.0)
    except ray.exceptions.RayError as error:
        raise ClusterAway(f"The Ray cluster did not run a cell: {first_line(error)}") from error


def _lost(ray: Any) -> tuple[type[Exception], ...]:
    """What Ray raises where a node or its actor is gone, or gives no answer in time."""
    lost = ray.exceptions
    return (
        lost.RayActorError,
        lost.WorkerCrashedError,
        lost.OutOfMemoryError,
        lost.NodeDiedError,
        lost.ObjectLostError,
        lost.GetTimeoutError,
    )


def main(arguments: Sequence[str]) -> int:
    """Send what the arguments say; 0 if its end is in a file, else there is one line on stderr."""
    try:
        end = send(arguments, read_orders())
        write_text(Path(arguments[1]) / SENT, TypeAdapter(ChildEnd).dump_json(end).decode())
    except MechassayError as error:
        sys.stderr.write(f"{first_line(error)}\n")
        return NO_ROOM if isinstance(error, DiskFull) else 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # Not sys.exit: it would wait for the thread that reads. Ray ends what was begun.
    os._exit(code)
