"""Trains STAR-ML: what every mode costs over the next rounds, and a network that learns it.

Start with `moments`, which simulates the costs; `training` fits the network, `scores` says what
its choices cost beside those of others.
"""
