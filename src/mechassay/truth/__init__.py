"""Ground truth: small transformers whose circuit is known, to test what finds circuits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.utils.registry import lazy_exports as _lazy_exports

if TYPE_CHECKING:
    from mechassay.truth.ground_truth import Truth as Truth
    from mechassay.truth.ground_truth import load_truth as load_truth
    from mechassay.truth.tasks import CAUSAL as CAUSAL
    from mechassay.truth.training import Training as Training
    from mechassay.truth.training import make_truth as make_truth
    from mechassay.truth.verification import Verification as Verification
    from mechassay.truth.verification import verify as verify


__all__, __getattr__, __dir__ = _lazy_exports(__name__, __file__)
