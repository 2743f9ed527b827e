"""Where the pages, data and records of a static board are, from the page that names them."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from markupsafe import Markup

from mechassay.runs.job import cell_name


@dataclass(frozen=True)
class Links:
    """Addresses of files of the board.

    Attributes:
        up: the way from the page to the first one.
    """

    up: str = ""

    def board(self, name: str) -> str:
        return f"{self.up}{name}.html"

    def row(self, board: str, row: str) -> str:
        return f"{self.up}rows/{board}/{quote(cell_name(row))}.html"

    def data(self, board: str, kind: str) -> str:
        return f"{self.up}data/{board}.{kind}"

    def record(self, sha256: str) -> str:
        return f"{self.up}records/{sha256}.json"


def link(address: str, text: str) -> Markup:
    """A link; both are escaped."""
    return Markup('<a href="{}">{}</a>').format(address, text)
