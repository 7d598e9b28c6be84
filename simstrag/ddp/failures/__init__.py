"""Ranks that die, hang or are cut off.

Start with `heartbeat`, by which ranks without a server notice it; then `diagnosis`, which names
the rank and the cause, and `rank_failure`, the exception. `abort_collectives` ends what waits for a
lost rank. Under a server, the server's connections have heartbeats of their own (`server.client`).
"""
