"""Policies over replicas whose models FSDP2 shards: a replica is a policy's worker.

Start with `world`; `sharded_replica` does what `replica.Replica` does for a worker of one rank.
"""
