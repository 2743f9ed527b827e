"""The options of experiments on judges: the fields of the classes of `judges.experiment`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from mechassay.documents import Extractor
from mechassay.runs.options import option

Steps = Literal["one", "claims-then-criteria", "per-criterion"]
Calibration = Literal["conservative", "aggressive"]
Theory = Literal["auto", "always", "never"]
Effort = Literal["", "none", "minimal", "low", "medium", "high"]
MOST_TOKENS = 16_384
LONGEST = 1200
"""Characters of a reason, a quote or a statement."""
TRIES = 5


@dataclass(frozen=True)
class AssessOptions:
    """Have a language model judge the claims of a document, and score what it says: as it stands,
    and with the quotes alone that are in the document.

    With several runs the least status of all counts. Then the judge may audit leaks, and argue
    against itself, both without the document.

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
    audit: Annotated[
        bool,
        option(
            "Whether the judge audits leaks: evidence of the whole, given for a part.",
            "--audit/--no-audit",
            role="free",
            first=True,
        ),
    ] = False
    advocate: Annotated[
        bool,
        option(
            "Whether the judge argues against what is left, as devil's advocate.",
            "--advocate/--no-advocate",
            role="free",
            first=True,
        ),
    ] = False
    calibration: Annotated[
        Calibration,
        option("Of the advocate: only plain mismatches count, or all doubts.", role="free"),
    ] = "conservative"
    steps: Annotated[Steps, option("How much one request asks.")] = "claims-then-criteria"
    prompt: Annotated[
        str,
        option(
            "Words of the judge, .yaml, see `mechassay claims prompt`; else this version's.",
            complete="files",
        ),
    ] = ""
    theory: Annotated[
        Theory, option("When proofs count as I1 and I2; auto is in documents without experiments.")
    ] = "auto"
    effort: Annotated[Effort, option("Of reasoning, for servers that take one.")] = ""
    claims: Annotated[
        str, option("Claims to judge, .yaml or .json; else the judge finds them.", complete="files")
    ] = ""
    criteria: Annotated[
        tuple[str, ...],
        option("Criterion, as I2; all if none is named.", "--criterion"),
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
