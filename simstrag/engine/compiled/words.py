"""What the numbers in the records mean."""

from __future__ import annotations

NOBODY, COMPUTING, PUSHING, READY, ASHORE, ABOARD, CLOSED, GONE = range(8)
"""Where the gradient of a rank is; NOBODY: it never had one; GONE: applied, dropped or aborted.

READY: arrived and not closed over yet.  ASHORE: a rider's, finished, waiting for its parent's next
finish.  ABOARD: a rider's, bound to its parent's gradient."""

WAITING, IN_SERVICE, SERVED = 1, 2, 3
"""Where its job at the server is; 0: it has none."""

HALFWAY, ARRIVED = 1, 2
"""Of a step whose finish is no event (`ahead`): it counts at its finish, or when it is pushed."""

ARRIVE, CLOSE, END, EXPIRE, TAKE = range(5)
"""Kinds of events of one instant, in their order (rule 15)."""

ALLREDUCE, SERVER, LEADER = range(3)
QUEUE, DROP, ABORT, JOIN = range(4)
"""`Via` and `Late`, in the order of their definitions."""

APPLIED, DROPPED, ABORTED, IN_FLIGHT = range(4)
"""Fates of gradients."""

(GO_ON, DONE, REVIEW, HORIZON, STALLED, NOISE, REDUCE, SERVE, FLUSH, ROOM, DURATIONS, PAUSE) = (
    range(12)
)
"""Why the loop comes back.

NOISE: a rank has used up its factors.  REDUCE, SERVE: it asks when a collective, or a job that
fuses groups, ends.  FLUSH: a log is full.  ROOM: a rank keeps more gradients than there is room
for.  DURATIONS: a rank has no recorded duration left.  PAUSE: it has worked for a while."""
