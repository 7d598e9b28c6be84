"""Contention traces: which nodes were slowed, when and by how much.

Start with `trace`, the `Trace` type. `row_validation` checks rows; `read_files` reads CSV and
parquet; `node_histories` groups rows by node. `slowdown` integrates one step function, so that
work under it has an end; `step_functions` combines many. It knows no job and no policy.
"""
