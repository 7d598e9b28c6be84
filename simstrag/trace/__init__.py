"""Contention traces: which nodes were slowed, when and by how much.

`trace` has the `Trace` type; `rows` checks rows, `files` reads and writes CSV and parquet, and
`step_functions` integrates piecewise-constant slowdowns. It knows no job and no policy.
"""
