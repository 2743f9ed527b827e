"""A page in headless Chromium: what a script finds in it, at some width and colour scheme.

`python tests/web/chromium.py` exits with 1 where there is none.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=60000",
)
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
# A window is at least 500 pixels wide, a frame may be narrower.
OUTER = """<!DOCTYPE html><html lang="en"><title>outer</title>
<body style="margin: 0">
<iframe title="page" style="border: 0; width: {width}px; height: 4000px" srcdoc="{page}"></iframe>
<script>
addEventListener("load", async () => {{
  const frame = document.querySelector("iframe").contentWindow;
  let found;
  try {{
    found = await frame.eval({script});
  }} catch (error) {{
    found = {{error: String(error)}};
  }}
  const out = document.createElement("pre");
  out.id = "found";
  out.textContent = JSON.stringify(found);
  document.body.replaceChildren(out);
}});
</script>"""


def executable() -> str | None:
    """Chromium on this machine, if there is one."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@dataclass(frozen=True)
class Browser:
    """Chromium, with a folder of its own."""

    program: str
    folder: Path

    def evaluate(
        self,
        page: str,
        script: str,
        *,
        width: int = 1400,
        scheme: Literal["light", "dark"] = "light",
    ) -> Any:
        """What a script returns in a page, as JSON.

        The page allows itself no scripts, so its policy is taken out; tests of pages check it.
        """
        text = OUTER.format(
            width=width,
            page=html.escape(POLICY.sub("", page), quote=True),
            # "</" would end the script that holds the text.
            script=json.dumps(script).replace("</", "<\\/"),
        )
        file = self.folder / "outer.html"
        file.write_text(text, encoding="utf-8")
        command = [
            self.program,
            *FLAGS,
            f"--user-data-dir={self.folder / 'profile'}",
            f"--window-size={max(width, 500)},4000",
            f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
            "--dump-dom",
            file.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        shown = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, flags=re.DOTALL)
        assert shown is not None, done.stderr[-2000:]
        found = json.loads(html.unescape(shown[1]))
        assert not (isinstance(found, dict) and "error" in found), found
        return found


if __name__ == "__main__":
    sys.exit(executable() is None)
