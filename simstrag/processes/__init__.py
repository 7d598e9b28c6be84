"""Child processes: how they start, which cores and signals they have, and that none outlives us.

It knows neither ranks nor runs. Start with `children`; `pool` is the worker pool of all runs.
"""
