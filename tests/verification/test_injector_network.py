"""A link of limited rate is as slow as it says, and is gone afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from simstrag import Run
from simstrag.errors import InputError
from simstrag.validation.loadgen import limited_link
from simstrag.validation.loadgen.injector import Injector
from simstrag.validation.loadgen.limited_link import LimitedLink, probe, remove_stale_links
from simstrag.validation.loadgen.schedule import Episode, Schedule

SIZE = 4 << 20

SERVE = f"""
import socket, sys, time
with socket.create_server((sys.argv[1], 0)) as server:
    server.settimeout(20)
    print(server.getsockname()[1], flush=True)
    connection, _ = server.accept()
    with connection:
        connection.settimeout(20)
        while data := connection.recv(1):
            left = {SIZE} - 1
            while left:
                left -= len(connection.recv(1 << 20))
            connection.sendall(b"1")
"""
PUSH = f"""
import socket, sys, time
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=20) as connection:
    for _ in range(3):
        begun = time.monotonic()
        connection.sendall(bytes({SIZE}))
        connection.recv(1)
        print(time.monotonic() - begun)
"""


@pytest.fixture(scope="module")
def probed() -> str:
    """Why this machine can have no link, "" where it can."""
    return probe()


@pytest.fixture
def able(probed: str) -> Iterator[None]:
    """A machine that can have a link, and has none left afterwards."""
    if probed:
        pytest.skip(probed)
    yield
    assert f"simstrag-{os.getpid()}-" not in limited_link._run("ip", "netns", "list")


def seconds(link: LimitedLink) -> float:
    """The median of three transfers of 4 MiB."""
    listening = link.start(
        "a", [sys.executable, "-c", SERVE, link.address("a")], stdout=subprocess.PIPE, text=True
    )
    with listening as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        pushing = link.start(
            "b", [sys.executable, "-c", PUSH, link.address("a"), port],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with pushing as client:
            out, _ = client.communicate(timeout=30)
    return sorted(map(float, out.split()))[1]


@pytest.mark.usefixtures("able")
def test_a_transfer_takes_as_long_as_the_rate_says() -> None:
    with LimitedLink(rate=400e6) as link:
        limited = seconds(link)
        link.limit(800e6)
        faster = seconds(link)
        link.limit(None)
        free = seconds(link)
    assert limited == pytest.approx(SIZE * 8 / 400e6, rel=0.2)
    assert faster == pytest.approx(SIZE * 8 / 800e6, rel=0.2)
    assert free < faster


@pytest.mark.usefixtures("able")
def test_nothing_passes_a_link_that_is_cut() -> None:
    ask = "import socket, sys; socket.create_connection((sys.argv[1], 9), timeout=1)"
    with LimitedLink() as link:
        command = [sys.executable, "-c", ask, link.address("a")]
        found = []
        for cuts in (False, True):
            if cuts:
                link.cut()
            with link.start("b", command, stderr=subprocess.PIPE, text=True) as process:
                found.append(process.communicate(timeout=20)[1].splitlines()[-1].split(":")[0])
    assert found[0] == "ConnectionRefusedError"  # it is there, and nobody listens
    assert found[1] != found[0]


@pytest.mark.usefixtures("able")
def test_what_runs_on_a_link_ends_with_it() -> None:
    with LimitedLink() as link:
        process = link.start("a", [sys.executable, "-c", "import time; time.sleep(100)"])
        while str(process.pid) not in limited_link._run("ip", "netns", "pids", link.namespace("a")):
            assert process.poll() is None
    assert process.wait(10) == -9


@pytest.mark.usefixtures("able")
def test_what_runs_on_a_link_ends_with_the_process_that_made_it() -> None:
    program = (
        "import os, sys; from simstrag.validation.loadgen.limited_link import LimitedLink\n"
        "link = LimitedLink(); link.__enter__()\n"
        "print(link.start('a', [sys.executable, '-c', 'import time; time.sleep(100)']).pid)\n"
        "sys.stdout.flush(); sys.stdin.readline()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True
    ) as process:
        assert process.stdout is not None
        inside = psutil.Process(int(process.stdout.readline()))
        while inside.cmdline()[1:] != ["-c", "import time; time.sleep(100)"]:
            assert process.poll() is None
        process.kill()
    assert psutil.wait_procs([inside], timeout=5)[1] == []


@pytest.mark.usefixtures("able")
def test_what_a_killed_process_left_is_removed_by_the_next() -> None:
    program = (
        "import os; from simstrag.validation.loadgen.limited_link import LimitedLink\n"
        "LimitedLink(rate=1e8).__enter__(); os.kill(os.getpid(), 9)"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        assert process.wait(30) == -9
    left = {f"simstrag-{process.pid}-{side}" for side in "ab"}
    with LimitedLink() as link:
        names = limited_link._run("ip", "netns", "list")
        assert link.namespace("a") in names
        assert not any(name in names for name in left)
    assert remove_stale_links() == []


def test_a_machine_that_cannot_says_why_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simstrag.validation.loadgen.limited_link.shutil.which", lambda tool: None)
    monkeypatch.setattr("simstrag.validation.loadgen.limited_link.os.geteuid", lambda: 0)
    monkeypatch.setattr("simstrag.validation.loadgen.limited_link.sys.platform", "linux")
    assert probe() == "a limited link needs ip and tc and setpriv (iproute2, util-linux)"
    with pytest.raises(InputError, match="needs ip and tc"), LimitedLink():
        pass
    monkeypatch.setattr("simstrag.validation.loadgen.limited_link.os.geteuid", lambda: 1000)
    assert probe() == "a limited link needs root, for network namespaces"


def test_a_rate_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="rate of a link: 0 bit/s"):
        LimitedLink(rate=0.0)


def test_a_link_has_its_own_rate_again_after_a_load(monkeypatch: pytest.MonkeyPatch) -> None:
    link, rates = LimitedLink(rate=400e6), list[float]()
    monkeypatch.setattr(link, "limit", rates.append)
    with Injector(Schedule((Episode(1, "link", 0.04, 0.0, 0.1),), 1.0), link=link) as injector:
        injector.go()
        injector.wait()
    assert rates == [40e6, 400e6]


def trained(folder: Path, policy: str, rate: float) -> Run:
    """Two ranks of the digits CNN, the second behind a link of so many Gbit/s after a second."""
    schedule = folder.with_suffix(".json")
    episode = {"rank": 1, "kind": "link", "level": rate, "start": 1, "stop": 60}
    schedule.write_text(json.dumps({"seconds": 60, "episodes": [episode]}))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "simstrag", "ddp", "digits", "--policy", policy, "--batch",
         "64", "--samples", "19200", "--out", str(folder), "--load", str(schedule)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Run.read(folder)


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("policy", ["bsp", "asgd"])
def test_a_rank_behind_a_limited_link_takes_as_long_as_its_gradient(
    policy: str, tmp_path: Path
) -> None:
    """605,224 bytes at 40 Mbit/s take 121 ms; those that go both ways do so at the same time."""
    pytest.importorskip("torch")
    run = trained(tmp_path / "run", policy, 0.04)
    applied = run.frame("gradients").query("rank == 1 and fate == 'applied'")["update"].to_numpy()
    times = run.frame("updates")["time"].to_numpy()[applied.astype(int) - 1]
    took = np.median(np.diff(times[times > 1.5]))
    assert 0.121 < took < 0.4
    assert any("load was put beside ranks" in said for said in run.warnings)
