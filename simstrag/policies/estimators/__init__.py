"""What policies decide with: detectors, predictors, modes and running medians.

Pure functions on arrays; no clock, no I/O, no policy. Start with `detectors`.
"""
