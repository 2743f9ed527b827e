"""The options of experiments on reproductions: the fields of the classes of
`reproduction.experiment`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from mechassay.reproduction.published import Paper
from mechassay.runs import options
from mechassay.runs.options import option


@dataclass(frozen=True)
class ReproductionOptions:
    """Put the tables of a paper beside ours: what is published, ours with its interval, the
    difference, and whether that reproduces it.

    Attributes:
        given: NAME=FOLDER, models that run in place of published ones; numbers of them are never
            called reproduced.
        artefacts: NAME=FOLDER, others' circuits and features (`reproduction.artefacts`).
    """

    paper: Annotated[
        Paper,
        option("The paper whose tables are put beside ours.", complete="papers", first=True),
    ]
    tables: Annotated[
        tuple[str, ...],
        option("Number of a table; all if not given. Repeat.", "--table", role="free", first=True),
    ] = ()
    columns: Annotated[
        tuple[str, ...],
        option(
            "Column of a table, as ioi/gpt2; all if not given. Repeat.",
            "--cells",
            role="free",
            first=True,
        ),
    ] = ()
    given: Annotated[
        tuple[str, ...],
        option(
            "NAME=MODEL: a folder or another model in place of a published one. Repeat.",
            "--model",
            "-m",
            first=True,
        ),
    ] = ()
    artefacts: Annotated[
        tuple[str, ...],
        option(
            "NAME=FOLDER or NAME=hub:OWNER/NAME@REVISION: circuits or features of others, measured"
            " beside MIB's tables. Repeat.",
            "--artefacts",
            "-a",
            role="free",
            first=True,
        ),
    ] = ()
    rows: Annotated[
        tuple[str, ...],
        option(
            "Row of a table, as 'EAP (CF)', or the name of --artefacts; all if not given. Repeat.",
            "--row",
            role="free",
            first=True,
        ),
    ] = ()
    limit: Annotated[
        int | None,
        options.limit("Examples of each cell, where fewer than published are to do.", least=2),
    ] = None
    hours: Annotated[
        float | None,
        option("Run only cells that this many hours have room for.", least=0, role="free"),
    ] = None
    seed: Annotated[int, options.SEED] = 0

    kind: ClassVar[str] = "reproduction"
