"""Curves and drawings of a submission's public cells."""

from __future__ import annotations

from mechassay.records import Record
from mechassay.report.page import Figure
from mechassay.service.lookups import SubmissionView
from mechassay.service.parts import ServiceParts


def submission_figures(
    parts: ServiceParts, view: SubmissionView
) -> tuple[list[Record], list[Figure]]:
    """The records of a submission that are on a board, and drawings of its circuits."""
    keys = [each.record for each in view.evaluations if each.record]
    found = [parts.boards.record_of(key) for key in keys]
    return [record for record in found if record is not None], []
