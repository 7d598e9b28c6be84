"""What follows from the recorded steps of one run: fates, waiting, phases, the close look.

Start with `steps`.
"""
