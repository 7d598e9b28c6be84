"""Advice for one job: which policy, how sure, what to measure first, and what a trial costs.

`advise` is the first thing to read. `candidates` lists what is tried, `halving` runs it under more
and more seeds, and `advice_text` says what was found.
"""
