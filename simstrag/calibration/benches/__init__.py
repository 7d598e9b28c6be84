"""Benches: each times one thing on this machine, with or without load beside it.

Start with `bench`, the base class, then `steps`: steps alone and beside load. `training_ranks`
times ranks that train in lockstep or under a server. `bench_selection` lists the benches of a
calibration. No fit is made here.
"""
