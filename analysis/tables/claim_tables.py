"""The tables of a scoreboard of claims: a row a claim, and a row an identity."""

from __future__ import annotations

from simstrag.analysis.charts.claim_maps import value_text
from simstrag.analysis.tables.table import Number, Table
from simstrag.analysis.text.number_format import MISSING
from simstrag.claims.claim import Learner
from simstrag.claims.scoreboard import Row, Scoreboard, Trial
