"""The live view of a run: who is slow, who waits for whom, what was lost, what would help.

Start with `watcher`: it follows growing files (`follow`), and makes a `Snapshot` of them that
`terminal`, `page` and `metrics` show. Steps and losses mean what `simstrag.whatif` says of them.
"""
