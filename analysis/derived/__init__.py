"""What follows from the recorded steps of one run: waits, phases, decisions, windows.

Start with `waiting`.
"""
