"""Steps by all-reduce: DDP sums gradients, and every rank decides for itself.

Start with `allreduce_mode`; `hook` is DDP's communication hook, and `control_message` travels
beside the gradients. `broadcast_and_average` makes models and optimizers of ranks equal.
"""
