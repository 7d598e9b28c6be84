"""Many runs at once: comparisons, sensitivity analyses and sweeps, cached and in parallel.

Start with `compare`. A `study` is a grid of scenarios, and `sweep` runs it. Worker processes of
this machine are `processes.pool`; `cluster_backends` adds Dask and Ray. Reports are made in
`simstrag.analysis`.
"""
