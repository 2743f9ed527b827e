"""PDF files written by hand, from the operators of their pages."""

from __future__ import annotations

import re
from collections.abc import Sequence

HEAD = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding 4 0 R >>"
# Letters 1 and 2 are the ligatures.
CODES = "<< /Type /Encoding /BaseEncoding /WinAnsiEncoding /Differences [1 /fi /fl] >>"


def made_pdf(
    *pages: str,
    forms: Sequence[tuple[str, str]] = (),
    title: str = "",
    size: tuple[int, int] = (612, 792),
    layers: Sequence[str] = (),
    layout: str = "",
    on_layer: str = "",
) -> bytes:
    """A PDF of pages of operators.

    Args:
        forms: matrix and operators of each form XObject, which pages call /X0, /X1, ...
        title: of the metadata.
        layers: dictionaries of optional content, which pages call /L0, /L1, ...; "@0" in them, in
            `layout` and in `on_layer` is a reference to the first.
        layout: the default configuration of layers.
        on_layer: the layer of each form as a whole.
    """
    first = 6 + len(forms)
    kids = " ".join(f"{first + 2 * n} 0 R" for n in range(len(pages)))
    named = " ".join(f"/X{n} {6 + n} 0 R" for n in range(len(forms)))
    last = first + 2 * len(pages)
    called = " ".join(f"/L{n} @{n}" for n in range(len(layers)))
    optional = f"/OCProperties << /OCGs [{called[4:]}] /D << {layout} >> >>" if layers else ""
    optional = re.sub(r"/L\d+ ", "", optional)
    resources = f"<< /Font << /F1 3 0 R >> /XObject << {named} >> /Properties << {called} >> >>"
    objects = [
        f"<< /Type /Catalog /Pages 2 0 R {optional} >>",
        f"<< /Type /Pages /Count {len(pages)} /Kids [{kids}] >>",
        HEAD,
        CODES,
        f"<< /Title ({title}) >>",
    ]
    for matrix, operators in forms:
        head = (
            f"<< /Type /XObject /Subtype /Form /BBox [-5000 -5000 5000 5000] /Matrix [{matrix}]"
            f" /Resources {resources} /Length {len(operators)}"
            f"{f' /OC {on_layer}' if on_layer else ''} >>"
        )
        objects.append(f"{head}\nstream\n{operators}\nendstream")
    for n, operators in enumerate(pages):
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {size[0]} {size[1]}]"
            f" /Resources {resources} /Contents {first + 2 * n + 1} 0 R >>",
            f"<< /Length {len(operators)} >>\nstream\n{operators}\nendstream",
        ]
    objects += [f"<< {each} >>" for each in layers]
    objects = [re.sub(r"@(\d+)", lambda n: f"{last + int(n[1])} 0 R", each) for each in objects]
    text, places = "%PDF-1.5\n", list[int]()
    for n, body in enumerate(objects, start=1):
        places.append(len(text))
        text += f"{n} 0 obj\n{body}\nendobj\n"
    begin = len(text)
    rows = "".join(f"{place:010d} 00000 n \n" for place in places)
    text += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{rows}"
    text += f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R /Info 5 0 R >>"
    text += f"\nstartxref\n{begin}\n%%EOF\n"
    return text.encode("latin-1")


def written(text: str, x: float = 72, y: float = 700, size: float = 10, more: str = "") -> str:
    """Operators that write a text; `more` comes before it, such as "1 1 1 rg" or "3 Tr"."""
    escaped = text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
    escaped = escaped.replace("ﬁ", "\\001").replace("ﬂ", "\\002")
    return f"q BT {more} /F1 {size} Tf {x} {y} Td ({escaped}) Tj ET Q\n"


def box(left: float, bottom: float, width: float, height: float, colour: str = "0 0 0") -> str:
    """Operators that fill a rectangle."""
    return f"q {colour} rg {left} {bottom} {width} {height} re f Q\n"


LEFT = (
    "The circuit that we found recovers 87% of the",
    "logit difference of the whole model, and it is",
    "the smallest one that does so on these exam-",
    "ples. It was not tested on other well-",
    "known tasks, whose names are longer, and of",
    "which the ﬁrst has more than one token.",
)
RIGHT = (
    "Heads 9.9 and 9.6 copy the name that stands",
    "in both clauses, and the reﬂex is speciﬁc to",
    "them. Without the S-inhibition heads they do",
    "nothing of that kind, as we show in Table 2.",
    "Five seeds gave the same heads, and a standard",
    "deviation of 0.02 between the runs of them.",
)
QUOTES = (
    "recovers 87% of the logit difference",
    "on these examples",
    "not tested on other well-known tasks",
    "copy the name that stands in both clauses",
    "Without the S-inhibition heads they do nothing",
    "a standard deviation of 0.02",
)


def two_columns(alternately: bool) -> str:
    """A page with a title and two columns, drawn one by one or line by line."""
    lines = [written("A Circuit for Names in a Small Model", 120, 740, 18)]
    left = [written(text, 54, 690 - 12 * n) for n, text in enumerate(LEFT)]
    right = [written(text, 320, 690 - 12 * n) for n, text in enumerate(RIGHT)]
    if alternately:
        return "".join([*lines, *(each for pair in zip(left, right, strict=True) for each in pair)])
    return "".join([*lines, *left, *right])
