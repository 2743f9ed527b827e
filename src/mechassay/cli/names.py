"""Names as they are typed: what shells offer for them, and what is refused before anything loads.

What a name may stand for is known by the registries alone. Settings behind a name are checked by
the experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mechassay.circuits.evaluation import METRICS
from mechassay.circuits.methods import METHODS
from mechassay.errors import one_of
from mechassay.gym.names import ALL_TASKS, FAMILIES, FINDERS, GYM_TASKS, SWEEPS
from mechassay.gym.names import FILES as GYM_FILES
from mechassay.models.sources import ALL_TRUTHS, check_sources, gym_model_names, truth_names
from mechassay.models.weight_files import packaged_names
from mechassay.prompts.rows import FILES
from mechassay.tasks import TASKS, TRUTHS, registry_of

ENGINES = ("here", "processes", "ray")


def known_names(kind: str) -> list[str]:
    """What there is of a kind (`Option.complete`)."""
    match kind:
        case "models":
            return [*packaged_names(), *truth_names(), *gym_model_names(), ALL_TRUTHS]
        case "tasks":
            return TASKS.names()
        case "methods":
            return METHODS.names()
        case "metrics":
            return METRICS.names()
        case _:
            return []


def check_names(kind: str, names: Sequence[str]) -> None:
    """Refuse what nobody registered; files and folders are looked for, and not read.

    Args:
        kind: as of `Option.complete`, or "truths"; of others nothing is refused.

    Raises:
        UnknownName: the message has the nearest valid name.
        BadFile, ModelNotFetched: none of the models is on this machine.
    """
    if kind == "models":
        check_sources(names, given=(ALL_TRUTHS,))
    elif kind in CHECKS:
        for name in names:
            CHECKS[kind](name)


def _check_task(name: str) -> None:
    if not name.lower().endswith(FILES):
        registry_of(name)


def _check_gym_task(name: str) -> None:
    if name not in (ALL_TASKS, *FAMILIES) and not name.lower().endswith(GYM_FILES):
        GYM_TASKS.check(name)


def _check_gym_method(name: str) -> None:
    if name not in SWEEPS:
        FINDERS.check(name)


def _check_measurement(name: str) -> None:
    from mechassay.measurement.gauges import ALL_GAUGES, gauge_id

    if name != ALL_GAUGES:
        gauge_id(name.partition(":")[0])


def _check_paper(name: str) -> None:
    from mechassay.reproduction.published import PAPERS

    one_of("paper", name, PAPERS)


def _check_truth(name: str) -> None:
    if not (Path(name) / "truth.json").is_file():
        TRUTHS.check(name)


CHECKS: Mapping[str, Callable[[str], None]] = {
    "tasks": _check_task,
    "methods": METHODS.check,
    "metrics": METRICS.check,
    "gym tasks": _check_gym_task,
    "gym methods": _check_gym_method,
    "measurements": _check_measurement,
    "papers": _check_paper,
    "truths": _check_truth,
}
"""By the kind of name, what refuses one that nobody registered."""
