"""Ranks that die, hang or are cut off.

Start with `heartbeat`, by which ranks without a server notice it; then `diagnosis`, which names
the rank and the cause, and `rank_failure`: the exception, and a rank's membership of its group.
`abort_collectives` ends collectives that wait for a lost rank. Connections to a server have
heartbeats of their own (`server.client`).
"""
