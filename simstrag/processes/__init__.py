"""Child processes: cores, worker pools, and their end with the parent.

Start with `affinity`. It knows neither ranks nor runs.
"""
