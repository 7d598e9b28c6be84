"""A snapshot as Prometheus metrics, on an HTTP port that is of the loopback unless asked otherwise.

Needs the package prometheus-client, the extra `watch`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simstrag.analysis.monitor.snapshot import Snapshot
from simstrag.errors import InputError

LOOPBACK = "127.0.0.1"


class MetricsServer:
    """Serves the numbers of the latest snapshot at `/metrics`; a context manager.

    address: a port, or host:port.
    Raises `InputError` where it cannot listen there, `ModuleNotFoundError` without the package.
    """

    def __init__(self, address: str) -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        host, port = parse_address(address)
        self._found: Snapshot | None = None
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise InputError(
                f"--metrics {address}: cannot listen there: {error.strerror}; give another port"
            ) from None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_port)

    def show(self, found: Snapshot) -> None:
        """Serve the numbers of a snapshot from now on."""
        self._found = found

    def collect(self) -> Iterator[Any]:
        """The metrics, as prometheus-client asks for them."""
        return iter(()) if self._found is None else families(self._found)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `PORT` or `HOST:PORT`. Raises `InputError`.

    >>> parse_address("9464"), parse_address("0.0.0.0:9464")
    (('127.0.0.1', 9464), ('0.0.0.0', 9464))
    """
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not int(port) < 65536:
        raise InputError(f"--metrics {text}: give a port or host:port, such as 9464")
    return host.strip("[]") or LOOPBACK, int(port)


def families(found: Snapshot) -> Iterator[Any]:
    """The metrics of a snapshot: gauges, as sums fall when start-up is found, or a run restarts."""
    from prometheus_client.core import GaugeMetricFamily

    def gauge(name: str, what: str, value: float) -> Any:
        return GaugeMetricFamily(f"simstrag_{name}", what, value=value)

    yield gauge("steps", "Steps of all ranks, but start-up.", found.steps)
    yield gauge("last_step", "Number of the newest step that all ranks have.", found.last)
    yield gauge("step_seconds", "Seconds of a mean step of the latest ones.", found.step_seconds)
    yield gauge("silence_seconds", "Seconds since any rank wrote.", found.age)
    if found.is_synced:
        yield gauge("gpu_seconds", "GPU-seconds of these steps.", found.spent)
        yield gauge("lost_gpu_seconds", "GPU-seconds of waiting for the last rank.", found.lost)
        if found.lost_money is not None:
            yield gauge("lost_cost", "What they cost at the price given.", found.lost_money)
    rank, factor = found.slowest or (-1, 1.0)
    yield gauge("slowest_rank", "The rank that tests call chronically slow; -1: none.", rank)
    yield gauge("slowest_rank_factor", "Its computing over that of its peers; 1: none.", factor)
    of_ranks = {
        "rank_step_seconds": ("Seconds that a rank computes in a mean step.", "computing"),
        "rank_wait_seconds": ("Seconds that it waits in a mean step.", "waiting"),
        "rank_factor": ("Its computing over that of its peers.", "factor"),
        "rank_last_step": ("Number of its newest step.", "step"),
        "rank_silence_seconds": ("Its silence while others wrote; 0: none.", "silent"),
    }
    for name, (what, field) in of_ranks.items():
        family = GaugeMetricFamily(f"simstrag_{name}", what, labels=["rank"])
        for each in found.ranks:
            family.add_metric([str(each.rank)], getattr(each, field))
        yield family
    if found.is_synced:
        what = "GPU-seconds that others waited for a rank."
        awaited = GaugeMetricFamily("simstrag_rank_awaited_gpu_seconds", what, labels=["rank"])
        for each in found.ranks:
            awaited.add_metric([str(each.rank)], each.awaited)
        yield awaited
