"""Records, scores and a curve that pages are made of."""

from __future__ import annotations

from helpers.record_fixtures import circuits as circuits
from helpers.record_fixtures import curve as curve
from helpers.record_fixtures import make_record as make_record
from helpers.record_fixtures import parse as parse
from helpers.record_fixtures import scores as scores
from helpers.record_fixtures import undefined as undefined
