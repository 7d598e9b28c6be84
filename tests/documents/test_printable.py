"""Names of hosts, files and policies, as a terminal gets them."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import simstrag
from simstrag.cli.console import print_line, print_paragraphs, print_sentences, print_table, warn
from simstrag.ddp.failures import diagnosis
from simstrag.documents.printable import printable, shell_command, shell_word
from tests.support.commands import SCENARIO, Call

HOSTILE = "b\x1b[2Jc\x07\x7f\x9b31m\u202ed\u2066e\u2028f\r"
SEEN = r"b\x1b[2Jc\x07\x7f\u009b31m\u202ed\u2066e\u2028f\x0d"


def is_clean(text: str) -> bool:
    return printable(text, keep="\n") == text


def test_what_steers_a_terminal_is_shown() -> None:
    assert printable(HOSTILE) == SEEN
    assert printable("größe 3 µs, 時間\u00a0\U0001f600") == "größe 3 µs, 時間\u00a0\U0001f600"
    assert printable("a\nb\tc", keep="\n") == "a\nb\\x09c"
    assert printable(os.fsdecode(b"t\xff.csv")) == r"t\xff.csv"


@pytest.mark.parametrize("name", [HOSTILE, "a b'c", "it\\'s\x1b$(date)`x`", "\x85\u0080", "-e\n"])
def test_a_shell_reads_back_the_word_that_was_shown(name: str) -> None:
    word = shell_word(name)
    assert printable(word) == word
    # bash needs a locale of UTF-8 for characters over 127
    shell = subprocess.run(
        ["bash", "-c", f"printf %s {word}"], capture_output=True, check=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    assert shell.stdout.decode() == name
    assert shell_command(["simstrag", "a b"]) == "simstrag 'a b'"


def test_all_that_is_printed_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    print_line(HOSTILE)
    print_line(HOSTILE, stderr=True)
    print_sentences(HOSTILE)
    print_paragraphs(HOSTILE)
    print_table([HOSTILE, "b"], [[HOSTILE, "1"]])
    warn([HOSTILE])
    diagnosis.warn(HOSTILE)
    out, err = capsys.readouterr()
    assert is_clean(out)
    assert is_clean(err)
    assert out.count(SEEN) == 5
    assert err.count(SEEN) == 3


def test_commands_print_by_the_console_alone() -> None:
    """So that no name reaches a terminal on another way."""
    folder = Path(simstrag.__file__).parent / "cli"
    for path in set(folder.glob("*.py")) - {folder / "console.py"}:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "print", f"{path}:{node.lineno}"


def hostile_steps(folder: Path) -> Path:
    path = folder / f"steps-{HOSTILE}.csv"
    rows = (
        f'{rank},{step},{1.5 if rank == 1 and 20 <= step < 40 else 1.0},{step},"{HOSTILE}{rank}"'
        for step in range(60)
        for rank in range(3)
    )
    path.write_text("\n".join(("rank,step,seconds,time,host", *rows, "")))
    return path


@pytest.mark.parametrize(
    "words",
    [
        ("trace", "import", "steps", "{}", "--out", "t.csv"),
        ("trace", "import", "steps", "{}", "--out", HOSTILE + ".csv"),
        ("trace", "describe", "{}"),
        ("trace", "describe", HOSTILE),
        ("whatif", "{}"),
        ("compare", "{}"),
        ("run", HOSTILE),
        ("compare", "slow.yaml", "--policies", f"bsp,{HOSTILE}"),
        ("policies", HOSTILE),
        ("trace", "import", HOSTILE, "{}", "--out", "t.csv"),
        ("init", "{}", "--out", HOSTILE + ".yaml"),
        (HOSTILE,),
    ],
)
def test_a_hostile_name_reaches_no_terminal(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slow.yaml").write_text(SCENARIO)
    path = hostile_steps(tmp_path)
    _, out, err = call(*(str(path) if word == "{}" else word for word in words))
    assert out + err
    assert is_clean(out), out
    assert is_clean(err), err


def test_json_has_escapes_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    monkeypatch.chdir(tmp_path)
    path = hostile_steps(tmp_path)
    _, out, _ = call("trace", "import", "steps", str(path), "--out", "t.csv", "--json")
    assert is_clean(out)
    assert json.loads(out)["nodes"]["0"] == f"{HOSTILE}0".strip()


def test_the_next_command_finds_a_file_of_a_hostile_name(tmp_path: Path, call: Call) -> None:
    path = hostile_steps(tmp_path)
    _, out, _ = call("trace", "describe", str(path))
    command = next(line for line in out.splitlines() if line.startswith("next: "))
    typed = command.removeprefix("next: ").replace("simstrag", f"{sys.executable} -m simstrag", 1)
    done = subprocess.run(
        ["bash", "-c", typed], check=False, capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "next: simstrag compare" in done.stdout
