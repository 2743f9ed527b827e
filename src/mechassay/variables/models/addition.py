"""Addition of two numbers of up to two digits, by carrying the one (MIB, figures 6 and 14).

    x10, x1, y10, y1     the digits of the operands; tens are 0 where there are none
    carry      X_Carry   1 if x1 + y1 >= 10, else 0
    ones       O_1       (x1 + y1) mod 10
    tens, hundreds       (x10 + y10 + carry) mod 10, and whether it is 10 or more
    answer               100 hundreds + 10 tens + ones

`tens_sum`, x10 + y10 + carry, is O_110 of section 4.3: the one variable that stands between the
carry and the two digits. The answer is written without zeros before it ("42").

*Readings of Mueller et al. 2025.* Section 4.3 and figure 6 have a carry where x1 + y1 > 10, the
caption of figure 14 where it "exceeds 9": it is 10 or more, else 5 + 5 were 0. Appendix G.5.2 has
"3" as the tens digit of 57 + 66, figure 14b has 2: it is 2, as the sum is 123. Section 4.3 speaks
of counterfactuals "that do not change the carry-the-one variable" (base 17+75, counterfactual
11+71): they change it, from 1 to 0, and the same section goes on to say that they always require a
change. The public code has the label "042" for 42, which no model of the paper writes; the labels
here have no such zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mechassay.examples import Prompt
from mechassay.variables.causal_model import CausalModel, Undecided, Variable
from mechassay.variables.models.written import space_before

DIGIT = Variable(range(10))


def addition_model() -> CausalModel:
    """The causal model of `arithmetic-addition`."""
    return CausalModel(
        "arithmetic-addition",
        {
            "x10": DIGIT,
            "x1": DIGIT,
            "y10": DIGIT,
            "y1": DIGIT,
            "carry": Variable((0, 1), lambda x1, y1: int(x1 + y1 >= 10)),
            "ones": Variable(range(10), lambda x1, y1: (x1 + y1) % 10),
            "tens_sum": Variable(range(20), lambda x10, y10, carry: x10 + y10 + carry),
            "tens": Variable(range(10), lambda tens_sum: tens_sum % 10),
            "hundreds": Variable((0, 1), lambda tens_sum: tens_sum // 10),
            "answer": Variable(
                range(200), lambda hundreds, tens, ones: 100 * hundreds + 10 * tens + ones
            ),
        },
        read=_read,
        write=_write,
    )


def _read(prompt: Prompt) -> Mapping[str, Any]:
    operands = [int(prompt.part(name)) for name in ("op1", "op2") if name in prompt.spans]
    if len(operands) != 2 or max(operands) > 99:
        raise Undecided("not two operands of up to two digits")
    (x10, x1), (y10, y1) = (divmod(operand, 10) for operand in operands)
    return {"x10": x10, "x1": x1, "y10": y10, "y1": y1}


def _write(value: int, base: Prompt) -> tuple[str, ...]:
    return (f"{space_before(base)}{value}",)
