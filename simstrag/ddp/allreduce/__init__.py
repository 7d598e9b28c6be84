"""Steps by all-reduce: DDP sums gradients, and every rank decides for itself.

Start with `allreduce_mode`; `hook` is DDP's communication hook.
"""
