"""Contention traces: which nodes were slowed, when and by how much.

`trace` has the `Trace` type; `row_validation` checks rows; `files` reads and writes CSV and
parquet; `step_functions` integrates piecewise-constant slowdowns. It knows no job and no policy.
"""
