"""From samples to the constants and laws of a profile, with held-out errors.

Start with `estimates`. Nothing is measured here.
"""
