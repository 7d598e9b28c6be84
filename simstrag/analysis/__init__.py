"""Reports: what comparisons, runs and profiles show, as text, tables, charts and pages.

Start with `pages.report`. It computes nothing that a run does not hold.
"""
