"""Every gradient is an update of its own, if it agrees with a gradient of the server's own.

The server takes a gradient v on samples of its own now and then.  A worker's gradient g is scaled
to the norm of v, and counts if lr v.g - rho g.g + lr epsilon is 0 or more, by inner products.

Source: Xie et al., "Zeno++: Robust Fully Asynchronous SGD", ICML 2020, arXiv:1903.07020.

The paper's: the test, and a v that is refreshed every few updates; it protects from workers that
send anything, and here it meets stale gradients alone.  The released code's: every 10 updates.
Ours: the other defaults; weights 1/N as under asgd; v is of samples drawn from all shards, where
the paper's server holds samples back from the workers.  Times are those of asgd: the server's
gradient is assumed to cost nothing, as it is computed beside the updates.
"""

from dataclasses import dataclass

from simstrag.contract import Plan, Quorum, Screen, Via, View


@dataclass(frozen=True)
class Zeno:
    """Asynchronous SGD with a test of each gradient.

    rho: penalty of the norm.
    epsilon: slack of the test.
    every: updates from one gradient of the server to the next.
    batch: samples of one.
    """

    title = "Zeno++"
    lane = "C"

    rho: float = 0.001
    epsilon: float = 0.0
    every: int = 10
    batch: int = 128

    def __post_init__(self) -> None:
        self._screen()

    def plan(self, view: View) -> Plan:
        return Plan.standing(Quorum(count=1, via=Via.SERVER), screen=self._screen())

    def _screen(self) -> Screen:
        return Screen(self.rho, self.epsilon, self.every, self.batch)
