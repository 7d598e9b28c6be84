"""Simulates one job: from a scenario, a policy and a seed to a run.

Start with `simulate`. `kernel` and `native` advance a standing plan; `live` drives real ranks.
"""
