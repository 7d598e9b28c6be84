"""Statistics as pure functions on arrays: tests that several rooms ask.

Start with `slow_workers`, which names workers that take longer than their peers.  The intervals of
a comparison stand beside it, in `simstrag.experiments.paired_statistics`.
"""
