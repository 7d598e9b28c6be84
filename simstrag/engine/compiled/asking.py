"""What compiled code asks of whoever drives."""

from __future__ import annotations

from simstrag.engine.compiled.compiling import compiled
from simstrag.engine.compiled.tables import (
    fate_log,
    kept,
    machine,
    member_log,
    step_log,
    update_log,
)
from simstrag.engine.compiled.words import (
    DURATIONS,
    FLUSH,
    GO_ON,
    NOISE,
    PAUSE,
    REDUCE,
    ROOM,
    SERVE,
)  # fmt: skip


@compiled
def wanted(m: int) -> int:
    """What the driver is asked before the next event; GO_ON for nothing."""
    g = machine(m)
    if g.call >= 0:
        return REDUCE
    if g.asks_server:
        return SERVE
    if g.out >= 0:
        return DURATIONS
    if g.stop != GO_ON:
        return g.stop  # type: ignore[no-any-return]
    if g.low:
        return NOISE
    if g.crowded:
        return ROOM
    if g.spent >= g.budget:
        return PAUSE
    if g.updates == len(update_log(m)) or g.members + g.workers > len(member_log(m)):
        return FLUSH
    if g.keeps_steps and g.steps + g.workers > len(step_log(m)):
        return FLUSH
    if g.keeps_fates and g.fates + g.workers * (kept(m).shape[1] + 1) > len(fate_log(m)):
        return FLUSH
    return GO_ON
