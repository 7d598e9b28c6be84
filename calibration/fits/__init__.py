"""From samples to the constants and laws of a profile, with held-out errors.

Start with `medians`. Nothing is measured here.
"""
