"""Parameter server: one process owns parameters, optimizer and policy, and commands the ranks.

Start with `server`, the loop of that process, and `server_mode`, which carries out its commands on
a rank. The engine applies the policy; `ddp.allreduce` carries out plans without a server.
"""
