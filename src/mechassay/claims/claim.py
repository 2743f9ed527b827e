"""What is claimed: a statement about a part of a model, with the predictions that would refute it.

    id: ioi-60
    statement: IOI in SmolLM2-135M runs through the 60 edges that EAP scores highest.
    description_mode: implementational-connectomic
    model: smollm2-135m
    task: ioi
    circuit: eap@60
    predictions: [{measure: circuit, direction: above, threshold: 0.7}]

A file, JSON or YAML, holds one claim, or several under `claims`, with a `title` and a `source`.
A mistake in a file is reported in one line. The claim of the whole system is the one that is
marked `system: true`. If none is, it is the one with most components; among equals the first
that speaks of a circuit, an algorithm or a mechanism.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, Field, FiniteFloat, ValidationError, model_validator

from mechassay.claims.rubric import RUBRIC, RubricKey, load_rubric
from mechassay.errors import BadFile, BadUsage, UnknownName, first_line, one_of
from mechassay.models.sources import UNTRAINED
from mechassay.results.records import Stored
from mechassay.utils.arguments import checked

ENDINGS = (".json", ".yaml", ".yml")


def read_plain(path: Path) -> Any:
    """What a JSON or YAML file holds.

    Raises:
        BadFile: it is not there, a folder, or neither.
        BadUsage: it has another ending.
    """
    if path.is_dir():
        raise BadFile(f"{path}: is a folder; a file was expected ({', '.join(ENDINGS)}).")
    if path.suffix not in ENDINGS:
        raise BadUsage(f"{path}: a file to read ends in {' or '.join(ENDINGS)}.")
    try:
        text = path.read_text("utf-8")
        return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: cannot be read ({first_line(error)}).") from None
    except (ValueError, yaml.YAMLError) as error:
        kind = "JSON" if path.suffix == ".json" else "YAML"
        message = " ".join(str(error).split())
        raise BadFile(f"{path}: is not {kind} ({message}).") from None


def fault(error: ValidationError, kind: type[BaseModel]) -> str:
    """The first thing that is wrong, where, and the nearest name where one is unknown."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    where = ".".join(place) or "the file"
    match first["type"]:
        case "extra_forbidden":
            known = _fields(kind, place[:-1])
            inside = f" of {'.'.join(place[:-1])}" if place[:-1] else ""
            return str(UnknownName(f"field{inside}", place[-1], known))
        case "missing":
            return f"{where} is missing."
        case "literal_error":
            allowed = str(first.get("ctx", {}).get("expected", "")).replace("'", "")
            names = allowed.replace(" or ", ", ").split(", ")
            return str(UnknownName(f"value of {where}", str(first["input"]), names))
        case _:
            # Values of YAML may hold one another many times over: not all is spelled out.
            given = " ".join(reprlib.repr(first["input"]).split())
            return f"{where}: {first['msg']}; got {given[:80]}."


def _fields(kind: type[BaseModel], place: list[str]) -> list[str]:
    """The fields of the model at a place within another."""
    schema = kind.model_json_schema()
    node: Any = schema
    for part in ["", *place]:
        if part:
            node = node.get("properties", {}).get(part) or node.get(
                "items", node.get("additionalProperties", {})
            )
        while "$ref" in node or "anyOf" in node:
            ref = node.get("$ref") or next(
                (option["$ref"] for option in node["anyOf"] if "$ref" in option), ""
            )
            if not ref:
                break
            node = schema["$defs"][ref.rpartition("/")[2]]
    return list(node.get("properties", {}))


COUNTERFACTUAL = "counterfactual"
_SYSTEM = re.compile(r"\b(circuit|algorithm|mechanism)s?\b", re.IGNORECASE)
_HEAD = re.compile(r"(?:[aL]?(\d+)[.H]h?(\d+))", re.IGNORECASE)


class Prediction(Stored):
    """A measure of a record, and where it must lie; else the claim is refuted."""

    measure: str
    direction: Literal["above", "below"]
    threshold: FiniteFloat
    of: str = "result"

    def __str__(self) -> str:
        whose = "" if self.of == "result" else f" of {self.of}"
        return f"{self.measure}{whose} {self.direction} {self.threshold:g}"


class Alternative(Stored):
    """Another circuit, of as many edges, that the claim's is held against.

    Attributes:
        method: that finds it; the claim's own if it is not named.
        task: that it is found on, if that is another than the claim's.
        circuit: what no method finds: a file of a circuit, stored scores with a size,
            "canonical:NAME".
    """

    method: str = ""
    task: str = ""
    circuit: str = ""

    @model_validator(mode="after")
    def _one_circuit(self) -> Self:
        if bool(self.circuit) == bool(self.method or self.task):
            raise ValueError("an alternative is a circuit, or what a method finds on a task")
        return self


class Claim(Stored):
    """A falsifiable statement about what happens inside a model.

    Attributes:
        description_mode: one of the rubric's modes, "" if the claim names none.
        families: of evidence that it rests on.
        components: nodes and edges, as this package names them ("a9.h9", "a9.h9->logits").
        system: whether it is about the whole mechanism, not a part of it.
        model, task: as records name them.
        circuit: a ranking and a size: "eap@60"; the ranking is a method, or the name of a score
            file without its ending.
        scores: the score file that the ranking is in; a method finds it if none is named.
        ablation: under which the circuit is said to do the task.
        other_task: a second behaviour, which is not said to need the circuit.
        alternative: a circuit of as many edges that is said to do less of the task.
        other_model: a model of another family, in which the same is looked for.
        untrained: the name under which an untrained copy of the model was run, if it is another
            than `untrained:` and the model's name.
    """

    id: str = Field(min_length=1)
    statement: str = Field(min_length=1)
    description_mode: str = ""
    families: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    system: bool = False
    model: str = ""
    task: str = ""
    circuit: str = ""
    scores: str = ""
    ablation: str = COUNTERFACTUAL
    other_task: str = ""
    alternative: Alternative | None = None
    other_model: str = ""
    untrained: str = ""
    predictions: tuple[Prediction, ...] = ()

    def __repr__(self) -> str:
        return f"Claim({self.id}: {self.statement!r})"

    __str__ = __repr__

    @property
    def untrained_copy(self) -> str:
        """The name of an untrained copy of its model."""
        return self.untrained or (f"{UNTRAINED}{self.model}" if self.model else "")

    @property
    def ranking(self) -> str:
        """What ranks the edges of its circuit."""
        return self.circuit.rpartition("@")[0] or self.circuit

    @property
    def size(self) -> str:
        """How many edges its circuit has, or which share; "" if it is not said."""
        return self.circuit.rpartition("@")[2] if "@" in self.circuit else ""


class ClaimFile(Stored):
    """The claims of one source.

    Attributes:
        registered: when they were written into the folder of their runs; "" if they were not.
    """

    format: Literal[1] = 1
    rubric: RubricKey = RUBRIC
    title: str = ""
    source: str = ""
    registered: str = ""
    claims: tuple[Claim, ...] = Field(min_length=1)

    @checked
    def claim(self, name: str) -> Claim:
        """The claim of an id.

        Raises:
            UnknownName: there is none.
        """
        for claim in self.claims:
            if claim.id == name:
                return claim
        raise UnknownName("claim", name, [claim.id for claim in self.claims])


def read_claims(path: str | Path) -> ClaimFile:
    """The claims of a YAML or JSON file: one claim, or several under `claims`.

    Raises:
        BadFile: not readable, or not of this form; the message names the field and the nearest.
    """
    return claims_of(read_plain(Path(path)), str(path))


def claims_of(plain: Any, name: str = "claims") -> ClaimFile:
    """The claims that plain values hold.

    Raises:
        BadFile: they are not of this form.
    """
    if isinstance(plain, dict) and "claims" not in plain:
        own = {key: value for key, value in plain.items() if key in Claim.model_fields}
        rest = {key: value for key, value in plain.items() if key not in own}
        known = {*ClaimFile.model_fields, *Claim.model_fields} - {"claims"}
        for key in rest:
            if key not in known:
                raise BadFile(f"{name}: {UnknownName('field of a claim', str(key), known)}")
        plain = {**rest, "claims": [own]}
    if not isinstance(plain, dict):
        holds = "nothing" if plain is None else f"a {type(plain).__name__}"
        raise BadFile(
            f"{name}: expected a claim (id, statement, ...) or several under `claims`; the file"
            f" holds {holds}."
        )
    try:
        claim_file = ClaimFile.model_validate(plain)
        check_claims(claim_file.rubric, claim_file.claims)
    except ValidationError as error:
        raise BadFile(f"{name}: {fault(error, ClaimFile)}") from None
    except BadUsage as error:
        raise BadFile(f"{name}: {error}") from None
    return claim_file


def check_claims(rubric: str, claims: Sequence[Claim]) -> None:
    """Refuse claims that share an id, two systems, or words that the rubric does not have.

    Raises:
        BadUsage: they have such a fault.
    """
    own = load_rubric(rubric)
    ids = [claim.id for claim in claims]
    for name in ids:
        if ids.count(name) > 1:
            raise BadUsage(f"Two claims have the id {name!r}.")
    if len([claim for claim in claims if claim.system]) > 1:
        raise BadUsage("Two claims are marked `system: true`; one is about the whole mechanism.")
    for claim in claims:
        if claim.description_mode:
            one_of(f"description mode of {claim.id}", claim.description_mode, own.modes)
        for family in claim.families:
            one_of(f"family of evidence of {claim.id}", family, own.families)


def system_claim(claims: Sequence[Claim]) -> tuple[str, str]:
    """The id of the claim about the whole system, and why it is that one.

    Raises:
        BadUsage: no claims.
    """
    if not claims:
        raise BadUsage("There are no claims, so none is about the whole system.")
    if len(claims) == 1:
        return claims[0].id, "the only claim"
    if marked := [claim for claim in claims if claim.system]:
        return marked[0].id, "marked as the system claim"
    most = max(len(claim.components) for claim in claims)
    left = [claim for claim in claims if len(claim.components) == most]
    if len(left) == 1:
        return left[0].id, "most components"
    named = [claim for claim in left if names_system(claim)]
    why = "names a circuit, an algorithm or a mechanism" if named else "the first claim"
    return (named or left)[0].id, why


def names_system(claim: Claim) -> bool:
    """Whether a claim speaks of a circuit, an algorithm or a mechanism."""
    return _SYSTEM.search(claim.statement) is not None


def component_name(text: str) -> str:
    """A head as this package names it: "9.9 (Name Mover)" and "L9H9" are "a9.h9"; others as is."""
    match = _HEAD.match(text.strip())
    return f"a{int(match[1])}.h{int(match[2])}" if match and "->" not in text else text.strip()
