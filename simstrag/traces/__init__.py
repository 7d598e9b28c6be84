"""Makes contention traces: importers of others' records, generators, resampling.

Start with `importers` or, for drawn traces, with `generate`. The type is `simstrag.trace`.
"""
