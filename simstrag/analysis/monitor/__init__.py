"""The live view of a run: slow ranks, the ranks that wait for them, GPU-hours lost, and remedies.

Start with `watcher`: it follows growing files (`follow`), and makes a `Snapshot` of them that
`terminal`, `page` and `metrics` show. Steps and losses mean what `simstrag.whatif` says of them.
"""
