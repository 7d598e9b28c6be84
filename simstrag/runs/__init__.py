"""Runs: what happened under one scenario, policy and seed, in memory and on disk.

Start with `run`. The engine and real trainings write runs; experiments and reports read them.
"""
