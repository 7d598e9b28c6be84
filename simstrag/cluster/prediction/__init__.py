"""Trains the predictor that reads the load of nodes, and checks it on runs not trained on.

Training needs torch; policies read the weights with numpy alone.  Start with `recording`, which
holds what monitors and views showed in runs of a cluster, then `training` and `scores`.
"""
