"""From constants, contention and noise to the instants at which things end.

Start with `timing`. It decides nothing: what waits for what is the engine's.
"""
