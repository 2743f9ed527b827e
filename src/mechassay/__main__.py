"""`python -m mechassay`."""

from __future__ import annotations

from mechassay.cli.main import main

if __name__ == "__main__":
    main()
