"""The devil's advocate: judgments that argue against those at hand (Tower 2026, section 3.8).

An advocate is a second file of judgments on the same claims. Of the five criteria of the leak
audit, each status that it gives lower, with a reason, is an objection. How many are followed is
its calibration.

    aggressive     each objection, on the system claim as well; the status is the advocate's
    conservative   those that say NO, on other claims than that of the system

The paper tried both as prompts. The first was too strict (IOI fell from 6.9 to 4.2), the second
changed nothing, and so it relies on votes. It leaves open what a status falls to, and whether the
system claim is spared.
"""

from __future__ import annotations

from typing import Literal, get_args

from mechassay.claims.judgments import Judgment, Judgments
from mechassay.claims.leak_audit import changed, objections, spared_claims
from mechassay.claims.minimum_vote import step_input
from mechassay.claims.scoring import Status
from mechassay.errors import one_of

Calibration = Literal["conservative", "aggressive"]
CALIBRATIONS: tuple[Calibration, ...] = get_args(Calibration)


def challenge(
    judgments: Judgments, advocate: Judgments, calibration: Calibration = "conservative"
) -> Judgments:
    """Judgments after what an advocate says against them.

    Raises:
        UnknownName: a calibration that there is not.
        BadUsage: they were challenged already; the advocate's are by another rubric.
    """
    one_of("calibration of an advocate", calibration, CALIBRATIONS)
    mild = calibration == "conservative"
    spared = spared_claims([each.claim for each in judgments.claims]) if mild else ()

    def refused(before: Status, said: Judgment) -> str:
        return "a conservative advocate says NO or nothing" if mild and said.status != "NO" else ""

    found, rejected = objections(judgments, advocate, spared, refused)
    about = step_input(advocate.rater.id, advocate)
    return changed(judgments, "advocate", about, found, rejected, spared)
