"""Put the tables of runs under the marker of a page:
python tools/tables.py runs/accuracy/accuracy.md docs/tasks/accuracy.md.

What stands above the marker is written by hand and stays.
"""

import sys
from pathlib import Path

MARKER = "<!-- Everything below is written by tools/tables.py. -->\n"

if __name__ == "__main__":
    *tables, page = map(Path, sys.argv[1:])
    above = page.read_text("utf-8").split(MARKER)[0]
    below = "\n".join(each.read_text("utf-8") for each in tables)
    page.write_text(f"{above}{MARKER}\n{below}", "utf-8")
