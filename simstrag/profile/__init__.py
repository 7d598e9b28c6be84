"""Profiles: what calibration measured on one device, each number with its origin.

Start with `profile`, then `quantity`. Measuring is done in `simstrag.calibration`.
"""
