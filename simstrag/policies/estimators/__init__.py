"""Building blocks of policies: detectors, predictors, modes and windows of recent values.

No clock, no I/O, no policy. Start with `detectors`: pure functions on arrays. Only `windows` has a
state, the latest values of each rank.
"""
