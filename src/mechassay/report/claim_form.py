"""The form for judging claims: one static page with criteria, guidance, pages and a quote picker.

The page runs one script of ours, by its hash, and loads nothing. It keeps what is typed in the
browser and writes `judgments.json`, which `claims score` and `claims compare` read.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from mechassay.claims.claim import ClaimFile
from mechassay.claims.documents import PagedDocument
from mechassay.claims.judgments import Judgments
from mechassay.claims.rubric import RUBRIC, load_rubric
from mechassay.claims.scoring import STATUSES
from mechassay.errors import BadUsage
from mechassay.files import check_ending, write_text
from mechassay.report.page import templates

SCRIPT = Path(__file__).parent / "templates" / "form.js"


def form_page(
    claims: ClaimFile | None = None,
    documents: Sequence[PagedDocument] = (),
    initial: Judgments | None = None,
) -> str:
    """The form as HTML.

    Args:
        claims: to judge; without any, the first claim is to be written in the form.
        documents: whose pages it shows, and in which quotes are found.
        initial: judgments that it begins with, such as those to settle.

    Raises:
        BadUsage: neither claims, nor a document, nor judgments.
    """
    if claims is None and initial is None and not documents:
        raise BadUsage("A form takes claims, a document, or judgments; got none of them.")
    named = initial.rubric if initial else claims.rubric if claims else RUBRIC
    rubric = load_rubric(named)
    data: dict[str, Any] = {
        "rubric": rubric.key,
        "codes": rubric.codes,
        "claims": _claims(claims, documents),
        "documents": [
            {**each.source.model_dump(), "pages": list(each.pages)} for each in documents
        ],
        "initial": initial.model_dump(mode="json") if initial else None,
        # The claim that stands for one that is still to be written.
        "drafted": claims is None and initial is None,
    }
    key = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]
    text = json.dumps({**data, "key": key}, ensure_ascii=False)
    script = SCRIPT.read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        templates()
        .get_template("form.html")
        .render(
            title=_title(claims, documents, initial),
            rubric=rubric,
            statuses=STATUSES,
            documents=documents,
            # "<" could end the script that holds the data.
            data=Markup(text.replace("<", "\\u003c")),
            script=Markup(script),
            digest=digest,
        )
    )


def write_form(
    path: str | Path,
    claims: ClaimFile | None = None,
    documents: Sequence[PagedDocument] = (),
    initial: Judgments | None = None,
) -> Path:
    """Write the form; see `form_page`.

    Raises:
        BadUsage: as `form_page`, or the file does not end in .html.
    """
    return write_text(check_ending(path, ".html"), form_page(claims, documents, initial))


def _claims(claims: ClaimFile | None, documents: Sequence[PagedDocument]) -> list[dict[str, Any]]:
    if claims is not None:
        return [claim.model_dump(mode="json") for claim in claims.claims]
    about = documents[0].title or documents[0].name if documents else "the source"
    return [{"id": "claim", "statement": f"What {about} claims.", "system": True}]


def _title(
    claims: ClaimFile | None, documents: Sequence[PagedDocument], initial: Judgments | None
) -> str:
    named = claims.title if claims else ""
    if not named and claims is None and documents:
        named = documents[0].title or documents[0].name
    ids = [claim.id for claim in claims.claims] if claims else []
    ids = [judged.claim.id for judged in initial.claims] if initial else ids
    return f"Judge {named or ', '.join(ids)}"
