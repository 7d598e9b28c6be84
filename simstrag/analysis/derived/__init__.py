"""What is computed for a report: of one run fates, waiting, phases; of a comparison its standings.

Start with `steps`, the recorded steps of a run, or `ranking`: estimates and paired differences.
"""
