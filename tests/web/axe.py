"""Fetches axe-core, which finds mistakes of accessibility in pages: python tests/web/axe.py.

It is a tool of the tests (Mozilla Public License 2.0, unchanged) and in no package of ours. It
stands beside the installed packages, at one version whose SHA-512 is known.
"""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import urllib.request
from pathlib import Path

VERSION = "4.14.1"
URL = f"https://registry.npmjs.org/axe-core/-/axe-core-{VERSION}.tgz"
SHA512 = (
    "1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b734f8c22a0dab86ee6a6f64b8afbe804b2"
    "14d36db85a2826965edfb3a0b9d546b5"
)
FILE = Path(sys.prefix) / f"axe-core-{VERSION}.min.js"


def fetch() -> None:
    """Write `FILE` if it is not there."""
    if FILE.is_file():
        return
    with urllib.request.urlopen(URL, timeout=60) as answer:
        archive = answer.read()
    if hashlib.sha512(archive).hexdigest() != SHA512:
        sys.exit(f"{URL}: not the file that is known.")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        script = files.extractfile("package/axe.min.js")
        assert script is not None
        FILE.write_bytes(script.read())


if __name__ == "__main__":
    try:
        fetch()
    except OSError as error:
        print(f"axe-core could not be fetched ({error}): its rules are not checked.")
