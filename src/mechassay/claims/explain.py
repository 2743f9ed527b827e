"""Files of others as plain values, and what is wrong with them in one line."""

from __future__ import annotations

import json
import reprlib
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from mechassay.errors import BadFile, BadUsage, UnknownName, first_line

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
        said = " ".join(str(error).split())
        raise BadFile(f"{path}: is not {kind} ({said}).") from None


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
                (each["$ref"] for each in node["anyOf"] if "$ref" in each), ""
            )
            if not ref:
                break
            node = schema["$defs"][ref.rpartition("/")[2]]
    return list(node.get("properties", {}))
