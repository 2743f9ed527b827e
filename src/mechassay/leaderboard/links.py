"""Addresses of the pages of boards: of files beside each other, or of a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote, urlencode

from markupsafe import Markup

from mechassay.runs.job import cell_name


class Links(Protocol):
    """Where pages, data and records are, from the page that names them."""

    @property
    def served(self) -> bool:
        """Whether a server answers: forms work, and rows are compared there."""
        ...

    def index(self) -> str: ...

    def board(self, name: str) -> str: ...

    def row(self, board: str, row: str) -> str: ...

    def data(self, board: str, kind: str) -> str: ...

    def record(self, sha256: str) -> str: ...


@dataclass(frozen=True)
class FileLinks:
    """Of files that need no server.

    Attributes:
        up: the way from the page to the first one.
    """

    up: str = ""
    served: bool = False

    def index(self) -> str:
        return f"{self.up}index.html"

    def board(self, name: str) -> str:
        return f"{self.up}{name}.html"

    def row(self, board: str, row: str) -> str:
        return f"{self.up}rows/{board}/{quote(cell_name(row))}.html"

    def data(self, board: str, kind: str) -> str:
        return f"{self.up}data/{board}.{kind}"

    def record(self, sha256: str) -> str:
        return f"{self.up}records/{sha256}.json"


@dataclass(frozen=True)
class ServedLinks:
    """Of a server, from its root."""

    served: bool = True

    def index(self) -> str:
        return "/"

    def board(self, name: str) -> str:
        return f"/boards/{name}"

    def row(self, board: str, row: str) -> str:
        return f"/boards/{board}/rows/{quote(cell_name(row))}"

    def data(self, board: str, kind: str) -> str:
        return f"/api/boards/{board}.{kind}"

    def record(self, sha256: str) -> str:
        return f"/api/records/{sha256}.json"


def compare_link(board: str, **asked: str) -> str:
    """Where a server compares two rows."""
    return f"/compare?{urlencode({'board': board, **asked})}"


def history_link(board: str, cell: str) -> str:
    """Where a server shows what stood in a cell."""
    return f"/history?{urlencode({'board': board, 'cell': cell})}"


def link(address: str, text: str) -> Markup:
    """A link; both are escaped."""
    return Markup('<a href="{}">{}</a>').format(address, text)
