"""From samples to the constants and laws of a profile, with held-out errors.

Start with `visit_statistics`. Nothing is measured here.
"""
