"""Reads what people have of a job: logs, profiles, metrics. One reader per format, one `Record`.

Start with `record`, then `read`, which chooses the reader. What a record means is in
`simstrag.whatif`; traces are made of it in `simstrag.traces`.
"""
