"""Parameter server: one process owns parameters, optimizer and policy, and commands the ranks.

Start with `server`, the loop of that process, and `server_mode`, which carries out its commands on
a rank. What a policy decides is the engine's; plans without a server are `ddp.allreduce`'s.
"""
