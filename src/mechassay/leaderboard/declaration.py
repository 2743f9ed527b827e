"""What a submitter declares of a submission: its name, the method, the training data, the compute.

It stands in `submission.yaml` or `submission.json` of the folder:

    name: eap-ig, 20 steps
    method: EAP-IG (inputs)
    description: what was done, for readers of its page
    training_data: 100 pairs of the train split, seed 0
    train_hashes: [sha256 of the examples that it was found on, as `provenance.data_hash` has it]
    compute: one H100
    gpu_hours: 0.5
    url: https://example.org/paper
    hub: OWNER/NAME@COMMIT          of the Hugging Face hub, where the files are not beside it

Its form is checked, and `train_hashes` are compared with the hash of the test examples: the board
says where they are the same. All else is shown as declared.

A name is a row of the board, so it must not pass for another row. It is plain text in Unicode's
form NFKC, with letters of one script, without signs that mean something in a page, a table or a
path. Names of the board's own rows are refused (methods and featurizers, also with settings, and
`random`, `control`), and so are endings that the board itself gives, as "(MIB)" and "(as
reported)". `skeleton` is what two names have in common that look alike.
"""

from __future__ import annotations

import math
import re
import unicodedata
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, Field, ValidationError

from mechassay.circuits.methods import METHODS
from mechassay.errors import BadFile, first_line
from mechassay.gym.methods import FINDERS
from mechassay.records import Number, Record, Stored, first_mistake
from mechassay.submissions import read_json, read_small_json
from mechassay.variables.featurizers import FEATURIZERS

FILES = ("submission.yaml", "submission.json")
LARGEST = 10**5
"""Bytes of a file that declares a submission."""
LONGEST_NAME, LONGEST_LINE, LONGEST_TEXT, MOST_HASHES = 80, 200, 5000, 10_000
HEADER_FILE = "submission.json"
IN_SAMPLE = "In-sample: the declared training data are the examples that this is evaluated on."
_NAME = re.compile(r"\w[\w .,:+=()@/-]*")
_HASH = re.compile(r"[0-9a-f]{64}")
_HUB = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}@[0-9a-f]{40}")
_URL = re.compile(r"https://[\w.-]+(:\d+)?(/[\w./~%+=&?#:@,;-]*)?")


OWN_ENDINGS = ("(mib)", "(as reported)")
RESERVED = frozenset({"control", "controls", "random", "truth", "full", "empty", "vanilla"})
"""Names of the board's own rows that no registry of methods has."""
LOOKALIKE = str.maketrans(
    "аеорсухіјѕкмтвнгԁһոԛԝαβγεικνορτυχω",
    "aeopcyxijskmtbhrdhnqwabyeikvoptuxw",
)
"""Small Cyrillic, Armenian and Greek letters by the Latin ones that they look like."""
_SCRIPTS_OF_JAPANESE = ("HIRAGANA", "KATAKANA", "CJK")


def skeleton(name: str) -> str:
    """What names that look alike have in common; for comparing, not for showing."""
    plain = unicodedata.normalize("NFKC", name).casefold().translate(LOOKALIKE)
    return re.sub(r"[\W_]+", "", plain.replace("0", "o").replace("1", "l"))


def _scripts(text: str) -> set[str]:
    """The scripts of the letters of a text, as their Unicode names begin."""
    words = {unicodedata.name(letter, "?").split()[0] for letter in text if letter.isalpha()}
    return {"JAPANESE" if word in _SCRIPTS_OF_JAPANESE else word for word in words}


def _name(text: str) -> str:
    text = text.strip()
    if text != (composed := unicodedata.normalize("NFKC", text)):
        raise ValueError(f"a name is in Unicode's form NFKC, as {composed[:LONGEST_NAME]!r}")
    if not _NAME.fullmatch(text) or len(text) > LONGEST_NAME:
        raise ValueError(
            f"a name has letters, digits, spaces and .,:+=()@/-, begins with a letter or a digit"
            f" and has at most {LONGEST_NAME} characters; got {text[:LONGEST_NAME]!r}"
        )
    if len(scripts := _scripts(text)) > 1:
        raise ValueError(f"a name has letters of one script; got {', '.join(sorted(scripts))}")
    if text.casefold().endswith(OWN_ENDINGS):
        raise ValueError(f"the board itself gives the ending of {text!r}; name your method")
    own = {*RESERVED, *METHODS.names(), *FINDERS.names(), *FEATURIZERS}
    before_settings = re.split(r"[:@(]", text)[0]
    if skeleton(before_settings) in set(map(skeleton, own)):
        raise ValueError(f"{text!r} is a name of the board's own rows; add what makes it yours")
    return text


def _plain(text: str) -> str:
    """Text without characters that are not to be seen, but for new lines and tabs."""
    hidden = [x for x in text if unicodedata.category(x) in ("Cc", "Cf", "Cs") and x not in "\n\t"]
    if hidden:
        raise ValueError(f"control characters are not allowed; got {hidden[0]!r}")
    return text.strip()


def _url(text: str) -> str:
    if text and not _URL.fullmatch(text):
        raise ValueError(f"an address begins with https:// and has no spaces; got {text[:80]!r}")
    return text


def _hub(text: str) -> str:
    if text and not _HUB.fullmatch(text):
        raise ValueError(
            "files on the hub are named OWNER/NAME@COMMIT, with all 40 digits of the commit; got"
            f" {text[:80]!r}"
        )
    return text


def _hash(text: str) -> str:
    if not _HASH.fullmatch(text):
        raise ValueError(f"a SHA-256 has 64 digits 0-9 and a-f; got {text[:80]!r}")
    return text


def _hours(value: float) -> float:
    if value < 0 or math.isinf(value):
        raise ValueError(f"hours are 0 or more; got {value}")
    return value


Line = Annotated[str, AfterValidator(_plain), Field(max_length=LONGEST_LINE)]
Text = Annotated[str, AfterValidator(_plain), Field(max_length=LONGEST_TEXT)]


class Declaration(Stored):
    """What a submitter says of a submission.

    Attributes:
        training_data: in words; `train_hashes` are the SHA-256 of what it was found on: of a data
            set, or of its prompts.
        gpu_hours: NaN where nothing is said.
        hub: the commit of a repository of the hub that has the files.
    """

    name: Annotated[str, AfterValidator(_name)]
    method: Line = ""
    description: Text = ""
    training_data: Text = ""
    train_hashes: tuple[Annotated[str, AfterValidator(_hash)], ...] = Field(
        default=(), max_length=MOST_HASHES
    )
    compute: Line = ""
    gpu_hours: Annotated[Number, AfterValidator(_hours)] = math.nan
    url: Annotated[str, AfterValidator(_url), Field(max_length=LONGEST_LINE)] = ""
    hub: Annotated[str, AfterValidator(_hub)] = ""

    @property
    def facts(self) -> dict[str, str]:
        """What it says, by name in words; fields that say nothing are left out."""
        facts = {
            "method": self.method,
            "description": self.description,
            "training data": self.training_data,
            "training hashes": ", ".join(self.train_hashes),
            "compute": self.compute,
            "GPU hours": "" if math.isnan(self.gpu_hours) else f"{self.gpu_hours:g}",
            "url": self.url,
        }
        return {name: text for name, text in facts.items() if text}

    @staticmethod
    def of(told: Any, source: str = "declaration") -> Declaration:
        """That of plain values, as a form or a file has them.

        Raises:
            BadFile: a field that is missing, unknown, too long or of another kind; the first.
        """
        try:
            return Declaration.model_validate(told)
        except ValidationError as error:
            raise BadFile(f"{source}: {first_mistake(error)}.") from None

    @staticmethod
    def read(path: Path) -> Declaration:
        """That of a YAML or JSON file.

        Raises:
            BadFile: missing, too large, unreadable, or as `of`.
        """
        if path.is_file() and path.stat().st_size > LARGEST:
            raise BadFile(f"{path}: has more than {LARGEST // 1000} kB; it was not opened.")
        if path.suffix == ".json":
            return Declaration.of(read_small_json(path), str(path))
        try:
            told = yaml.safe_load(path.read_text("utf-8"))
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            raise BadFile(f"{path}: not readable as YAML ({first_line(error)}).") from None
        return Declaration.of(told, str(path))


class SubmissionHeader(Stored):
    """What the results of a submission are of, in `submission.json` beside their run folders.

    Attributes:
        content: the hash of all numbers in the submission; see `Submission.content`.
        folder: of the submission as the plans of the runs name it.
    """

    declaration: Declaration
    content: str
    folder: str

    @staticmethod
    def read(results: Path) -> SubmissionHeader | None:
        """That of a folder of results; None where these are of no submission.

        Raises:
            BadFile: the file is damaged.
        """
        file = results / HEADER_FILE
        if not file.is_file():
            return None
        try:
            return SubmissionHeader.model_validate(read_json(file))
        except ValidationError as error:
            raise BadFile(f"{file}: no submission ({first_mistake(error)}).") from None

    def row(self, record: Record) -> str:
        """The row of a board that a record of it stands in."""
        return row_of(self.declaration.name, record)

    def in_sample(self, record: Record) -> list[str]:
        """A warning if the declared training data are the test examples, by their hashes."""
        test = record.data.get("test")
        hashes = {record.provenance.data_hash, "" if test is None else test.hash}
        return [IN_SAMPLE] if hashes & set(self.declaration.train_hashes) else []


def row_of(name: str, record: Record) -> str:
    """The row of a submission: its name, and behind it the size of the circuit that a record is
    of, if it is of one, as adversarial records are.
    """
    size = record.method.args.get("size")
    return name if size is None else f"{name}@{size}"
