"""Benches: each times one thing on this machine, with or without load beside it.

Start with `steps`, then `suite`. No fit is made here.
"""
