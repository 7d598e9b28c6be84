"""Many runs at once: comparisons, sensitivity analyses and sweeps, cached and in parallel.

Start with `compare`. It draws nothing: reports are made in `simstrag.analysis`.
"""
