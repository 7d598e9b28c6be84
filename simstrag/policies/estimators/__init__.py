"""Building blocks of policies: detectors, predictors, modes and running medians.

No clock, no I/O, no policy. Start with `detectors`: pure functions on arrays. Only `windows` has a
state, the latest values of each rank; `loops` compiles functions that loop over arrays.
"""
