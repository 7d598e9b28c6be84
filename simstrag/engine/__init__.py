"""Simulates one job: from a scenario, a policy and a seed to a run.

Start with `simulate`, then `simulation`. `rules` says what happens, and `plain` simulates with it;
`kernel` and `native` do the same in C; `live` drives real ranks.
"""
