"""Logs of each kind: from a file to a decision, and what becomes of a damaged file."""

from __future__ import annotations

import random
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from simstrag.errors import InputError
from simstrag.trace.trace import Trace
from simstrag.traces.importers import FORMATS, import_trace, recognise
from simstrag.traces.provenance import scenario_of
from tests.commands import Call
from tools.make_example_logs import CLEAN, FOLDER, HOSTS, SLOW, TRANSFER, logs

KINDS = {
    "steps.csv": "steps", "episodes.csv": "episodes", "utilisation.csv": "utilisation",
    "prometheus.json": "prometheus", "gpu-utilization-data.csv": "prometheus",
    "wandb-chart.csv": "wandb", "wandb-history.jsonl": "wandb",
    "run-gpu01-tag-step_time.csv": "tensorboard", "run-gpu01-tag-step_time.json": "tensorboard",
    "profile-rank0.json": "kineto",
}  # fmt: skip
"""The format of each log in examples/logs; of files per rank, that of the first rank."""
MUTATIONS = 1000
KEPT = 4000
"""Letters of a log that is mutated."""


def test_the_logs_are_those_of_their_script() -> None:
    written = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    written.pop("README.md")
    assert written == logs()


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize("name", KINDS)
def test_two_commands_lead_from_a_log_to_a_decision(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """`describe` names the import, the import names the comparison, and each runs as printed."""
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    code, described, err = call("trace", "describe", name)
    assert (code, err) == (0, "")
    assert described.startswith(f"{name}: a log in format {KINDS[name]}, and no trace yet.\n")
    code, imported, err = call(*next_command(described))
    assert (code, err) == (0, "")
    compare = next_command(imported)
    assert compare[0] == "compare"
    code, ranking, _ = call(*compare, "--seeds", "1", "-p", "bsp", "-p", "lb_bsp")
    assert code == 0
    assert "lb_bsp" in ranking
    trace = Trace.read(re.search(r"^trace: (.*)$", imported, re.MULTILINE)[1])  # type: ignore[index]
    if KINDS[name] == "kineto":
        assert trace.nodes == (0, 1, 2, 3)
        return
    assert {*HOSTS} >= {*trace.names.values()} >= {"gpu01", "gpu03"}
    (slowest,) = (node for node, host in trace.names.items() if host == "gpu03")
    factor = SLOW[2][2]
    worst = max(value for _, _, _, kind, value in trace.rows if kind == "slowdown")
    assert worst == max(row.value for row in trace.rows if row.node == slowest)
    assert worst == pytest.approx(1 + (factor - 1) / 2 if "util" in name or "prom" in name
                                  else factor, rel=0.03)  # fmt: skip


def next_command(printed: str) -> list[str]:
    """The words of the command after `next:`, without the program."""
    program, *words = shlex.split(printed.splitlines()[-1].removeprefix("next: "))
    assert program == "simstrag"
    return words


@pytest.mark.parametrize("name", KINDS)
def test_a_log_is_recognised(name: str) -> None:
    found = recognise(FOLDER / name)
    assert found is not None
    assert found[0] == KINDS[name]


def test_every_format_has_a_log_but_the_public_data_sets() -> None:
    assert FORMATS.keys() - KINDS.values() == {"alibaba-pai-minibatch", "bytedance-straggler"}


def test_steps_measure_what_the_formula_has(tmp_path: Path) -> None:
    found = import_trace("steps", [FOLDER / "steps.csv"])
    found.write(tmp_path / "t.csv")
    lines = dict(line.split(": ", 1) for line in scenario_of(tmp_path / "t.csv"))
    step, allreduce = lines["step"], lines["allreduce"]
    compute, cv = re.findall(r"[\d.]+", step)[:2]
    assert float(compute) == pytest.approx(CLEAN, rel=0.005)
    assert float(cv) == pytest.approx(((0.03**2 + 0.02**2) / 2) ** 0.5, rel=0.1)
    assert float(allreduce.split()[-4]) == pytest.approx(TRANSFER, abs=0.0002)


# -- damaged files

Damage = Callable[[bytes, random.Random], bytes]


def span(data: bytes, luck: random.Random, longest: int = 12) -> slice:
    first = luck.randrange(len(data))
    return slice(first, first + luck.randrange(1, longest))


def remove(data: bytes, luck: random.Random) -> bytes:
    part = span(data, luck, luck.choice((2, 12, 200)))
    return data[: part.start] + data[part.stop :]


def cut_off(data: bytes, luck: random.Random) -> bytes:
    return data[: luck.randrange(len(data))]


def overwrite(data: bytes, luck: random.Random) -> bytes:
    part = span(data, luck, 4)
    return data[: part.start] + luck.randbytes(part.stop - part.start) + data[part.stop :]


def replace_number(data: bytes, luck: random.Random) -> bytes:
    numbers = list(re.finditer(rb"-?\d+(\.\d+)?", data))
    words = (
        b"", b"nan", b"-1", b"0", b"1e999", b"9" * 400, b"high", b"1e18", b'"', b"null", b"[]",
        b"-0.0", b"12:30", b"2026-02-31", b"{}", b"1e-320", b"5 %",
    )  # fmt: skip
    if not numbers:
        return data
    found = luck.choice(numbers)
    return data[: found.start()] + luck.choice(words) + data[found.end() :]


def repeat(data: bytes, luck: random.Random) -> bytes:
    part = span(data, luck, luck.choice((3, 60)))
    return data[: part.start] + 2 * data[part] + data[part.stop :]


def move_line(data: bytes, luck: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    moved = lines.pop(luck.randrange(len(lines)))
    lines.insert(luck.randrange(len(lines) + 1), moved)
    return b"".join(lines)


def exchange_marks(data: bytes, luck: random.Random) -> bytes:
    old, new = luck.sample((b",", b";", b"\t", b'"', b"\n", b"{", b"]", b":"), 2)
    return data.replace(old, new, luck.choice((1, 3, -1)))


DAMAGES: tuple[Damage, ...] = (
    remove, cut_off, overwrite, replace_number, replace_number, repeat, move_line, exchange_marks,
)  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_log_is_imported_or_refused_in_one_line(name: str, tmp_path: Path) -> None:
    text = (FOLDER / name).read_bytes()
    is_whole = name.startswith(("prom", "profile", "run"))
    head = text if is_whole else text[: text.rfind(b"\n", 0, KEPT)]
    path = tmp_path / name
    refused = 0
    for number in range(MUTATIONS // len(KINDS)):
        luck = random.Random(f"{name} {number}")
        data = head
        for damage in luck.choices(DAMAGES, k=luck.randrange(1, 4)):
            data = damage(data, luck) if data else data
        path.write_bytes(data)
        for read in (lambda: import_trace(KINDS[name], [path]).page("t"), lambda: recognise(path)):
            message = outcome(read)
            assert "\n" not in message, number
            assert not message or str(path) in message, number
            assert len(message) < 500 + len(str(path)), number
            refused += bool(message)
    assert refused > MUTATIONS // len(KINDS) // 4


def outcome(read: Callable[[], object]) -> str:
    """The message of the error that a user may correct, or nothing."""
    try:
        read()
    except InputError as error:
        return str(error)
    return ""
