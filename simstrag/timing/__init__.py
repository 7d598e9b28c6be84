"""From constants, contention and noise to the instants at which things end.

Start with `timing`. It decides nothing: the engine knows what waits for what.
"""
