"""Advice for one job: which policy, how sure, what to measure first, and what a trial costs.

Start with `advise`. `candidates` lists what is tried, `halving` runs it under more
and more seeds, `advice` has what was found as values, and `power` adds power caps.
"""
