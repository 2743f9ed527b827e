"""Write docs/tasks/accuracy.md from a run of `mechassay tasks score`: python docs/accuracy.py FOLDER.

What stands above the marker is written by hand and stays.
"""

import sys
from pathlib import Path

PAGE = Path(__file__).parent / "tasks/accuracy.md"
MARKER = "<!-- Everything below is written by docs/accuracy.py. -->\n"

if __name__ == "__main__":
    tables = (Path(sys.argv[1]) / "accuracy.md").read_text("utf-8")
    above = PAGE.read_text("utf-8").split(MARKER)[0]
    PAGE.write_text(f"{above}{MARKER}\n{tables}", "utf-8")
