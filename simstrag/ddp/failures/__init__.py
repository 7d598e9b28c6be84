"""Ranks that die, hang or are cut off: heartbeats, membership and diagnosis.

Start with `heartbeat`, then `diagnosis`.
"""
