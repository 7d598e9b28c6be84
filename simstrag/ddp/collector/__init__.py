"""The collector: who computed and who waited for whom in a distributed script, with no profiler.

Start with `record`, which a script calls; then `hooks`, which mark when a rank begins to wait in
its one group, `group_waits` where it has several, and `step_marks`, which makes seconds of marks.
"""
