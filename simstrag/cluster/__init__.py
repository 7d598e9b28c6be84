"""Jobs that share nodes: they use processors, networks and devices, and slow each other down.

One job keeps all rules of `docs/semantics.md`; this package couples jobs by their shares of the
nodes (rules C1 to C15 of `docs/cluster.md`).  It does not preempt or migrate jobs.  Start with
`simulate`, then `shared_nodes`, `sharing` and `job`.
"""
