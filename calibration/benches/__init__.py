"""Benches: each times one thing on this machine, with or without load beside it.

Start with `steps`, then `bench_selection`. No fit is made here.
"""
