"""Makes contention traces: importers of others' records, generators, resampling.

Start with `formats` for importers and `generate` for drawn traces. The type is `simstrag.trace`.
"""
