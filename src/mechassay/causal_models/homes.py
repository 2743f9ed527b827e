"""Where the variables of ground truths live, as far as is claimed; `true_sites` verifies it.

Only names stand here: lists are told by them without what runs models.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mechassay.interventions.site import Site

INPUT, LOGITS = "input", "logits"
LAST = "last"
"""The last position, as sites spell it."""
_WRITER = re.compile(r"a(?P<layer>\d+)\.h(?P<head>\d+)|m(?P<mlp>\d+)|input")


class Home(NamedTuple):
    """A writer that holds a variable, where, and who reads it there.

    Attributes:
        writer: as edges spell it: "a1.h1", "m0" or "input".
        position: a part of the prompt, or "last".
        until: the first that takes it from the stream there, or adds what makes the stream hold
            another thing too; "logits" after the last block.
    """

    writer: str
    position: str
    until: str

    @property
    def site(self) -> Site:
        """The writer's own site; of the input, the stream before the first block."""
        from mechassay.interventions.site import Site

        found = _WRITER.fullmatch(self.writer)
        assert found is not None
        if found["head"] is not None:
            return Site(int(found["layer"]), self.position, "heads", (int(found["head"]),))
        if found["mlp"] is not None:
            return Site(int(found["mlp"]), self.position, "mlp")
        return Site(-1, self.position)

    def stream(self, n_layers: int) -> tuple[Site, ...]:
        """The stream at the position after each block, from the writer's on."""
        from mechassay.interventions.site import Site

        end = n_layers if self.until == LOGITS else _layer(self.until)
        return tuple(Site(layer, self.position) for layer in range(_layer(self.writer), end))


HOMES: Mapping[str, Mapping[str, tuple[Home, ...]]] = MappingProxyType(
    {
        "truth-addition-trained": {
            "carry": (Home("m0", "op2_last", "a1.h2"), Home("a1.h2", LAST, "m1")),
            "both_tens": (Home("a0.h3", LAST, "m1"),),
            "answer": (Home("m1", LAST, LOGITS),),
        },
        "truth-fraction-trained": {"share": (Home("a0.h2", LAST, "m1"), Home("m1", LAST, LOGITS))},
        "truth-greater-than-trained": {
            "digit": (
                *(Home(INPUT, "digit", "a0.h0"), Home("a0.h0", LAST, "m1")),
                Home("m1", LAST, LOGITS),
            )
        },
        "truth-induction-trained": {"asked": (Home(INPUT, LAST, "a1.h0"),)},
        "truth-ioi-trained": {
            "duplicate": (
                *(Home(INPUT, "subject_2", "a0.h2"), Home("a0.h2", LAST, "a1.h3")),
                Home("a1.h3", LAST, "a2.h1"),
            ),
            "answer": (Home(INPUT, "indirect_object", "a2.h1"), Home("a2.h1", LAST, LOGITS)),
        },
        "truth-mcqa-trained": {
            "answer_pointer": (Home("a1.h1", LAST, "a2.h2"),),
            "answer": (Home(INPUT, "correct_symbol", "a2.h2"), Home("a2.h2", LAST, LOGITS)),
        },
        "truth-previous-token-trained": {
            "previous": (
                *(Home(INPUT, "answer", "a0.h1"), Home("a0.h1", "mark", "a1.h2")),
                Home("a1.h2", LAST, LOGITS),
            )
        },
    }
)
"""By ground truth and variable of its task's causal model."""


def _layer(node: str) -> int:
    return -1 if node == INPUT else int(re.findall(r"\d+", node)[0])
