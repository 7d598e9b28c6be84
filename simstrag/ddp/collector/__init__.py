"""The collector: who computed and who waited in any DDP or FSDP2 script, without a profiler.

Start with `record`, which a script calls; then `hooks`, which mark when a rank begins to wait, and
`step_marks`, which makes seconds of the marks.
"""
