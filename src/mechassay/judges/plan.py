"""What a run of a judge does: the fields of `judges.job.AssessJob`, and its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from mechassay.documents import Extractor
from mechassay.runs.options import option

Steps = Literal["one", "claims-then-criteria", "per-criterion"]
MOST_TOKENS = 16_384
LONGEST = 1200
"""Characters of a reason, a quote or a statement."""
TRIES = 5


@dataclass(frozen=True)
class AssessPlan:
    """Have a language model judge the claims of a document, and score what it says: as it stands,
    and with the quotes alone that are in the document.

    Attributes:
        source: the document.
        prices: US dollars for a million tokens of input and of output.
    """

    source: Annotated[
        str,
        option(
            "Document: an arXiv or OpenReview id, an address, or a file (.pdf, .html, .md, .txt).",
            complete="files",
        ),
    ]
    judge: Annotated[
        str, option("scripted:FILE, replay:FOLDER, or openai:MODEL@URL (default OpenAI's).")
    ]
    runs: Annotated[
        int,
        option("Runs of the judge; each is a file of judgments.", least=1, role="free", first=True),
    ] = 1
    steps: Annotated[Steps, option("How much one request asks.")] = "claims-then-criteria"
    claims: Annotated[
        str, option("Claims to judge, .yaml or .json; else the judge finds them.", complete="files")
    ] = ""
    criteria: Annotated[
        tuple[str, ...],
        option("Criterion, as I2; all if none is named.", "--criterion", first=True),
    ] = ()
    pages: Annotated[int | None, option("Pages of a PDF to read.", least=1, none="all")] = None
    extractor: Annotated[Extractor, option("What reads PDFs; paper is pypdf, 50 pages.")] = "pdfium"
    title: Annotated[str, option("Title that the paper should have, against wrong ids.")] = ""
    context: Annotated[
        int | None,
        option("Tokens of the judge's context, or `server`: what it says.", least=1, none="server"),
    ] = None
    most_tokens: Annotated[int, option("Tokens of an answer at most.", least=1)] = MOST_TOKENS
    longest: Annotated[int, option("Characters of a reason or quote at most.", least=8)] = LONGEST
    temperature: Annotated[float, option("Of sampling.", least=0)] = 0.0
    timeout: Annotated[float, option("Seconds to wait for an answer.", least=0.01, role="free")] = (
        600.0
    )
    tries: Annotated[
        int, option("Faults in a row, or invalid answers, to bear.", least=1, role="free")
    ] = TRIES
    input_price: Annotated[
        float | None, option("US dollars for a million tokens of input.", least=0, role="free")
    ] = None
    output_price: Annotated[
        float | None, option("US dollars for a million tokens of output.", least=0, role="free")
    ] = None

    kind: ClassVar[str] = "assess"
