"""Scenarios: everything that a run depends on except the policy and the seed.

Start with `scenario`; `sections` has the parts of a scenario file. Nothing is simulated here.
"""
