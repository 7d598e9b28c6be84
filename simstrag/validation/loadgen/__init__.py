"""Puts real load beside real ranks, by a schedule.

Start with `schedule`, then `injector`.
"""
