"""Profiles: numbers of one device, each measured, fitted or assumed.

Start with `profile`, then `quantity`. Measuring is done in `simstrag.calibration`.
"""
