"""What of a record was measured under another track than the present one.

Cells are computed again under the track that server or export give out. A record of an earlier one
would differ, although nothing is wrong with it.
"""

from __future__ import annotations

from mechassay.records import Record
from mechassay.service.adversarial import prompts_then_and_now
from mechassay.service.track import ServiceTrack


def other_track(record: Record, track: ServiceTrack) -> str:
    """The settings that differ, as "limit 8, now 40"; "" if none does."""
    task, about = record.specs.get("task"), record.provenance
    then: dict[str, object] = {"dtype": about.dtype, "seed": about.seed}
    here: dict[str, object] = {"dtype": track.dtype, "seed": track.seed}
    if task is not None and "limit" in task.args:
        then["limit"], here["limit"] = task.args["limit"], track.examples_of(task.name)
    prompts_then, prompts_here = prompts_then_and_now(record, track.adversarial)
    then, here = {**then, **prompts_then}, {**here, **prompts_here}
    return "; ".join(
        f"{name} {value}, now {here[name]}" for name, value in then.items() if value != here[name]
    )
