"""The secret of a job: it lets ranks into their server, and is on no store and no network.

Ranks have it from the environment of their launcher.  Under torchrun a user sets it, or, where all
ranks are on one machine, the rank that starts a server leaves it in a file that its user alone can
read.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Iterator

from simstrag.errors import InputError

VARIABLE = "SIMSTRAG_SECRET"
"""Environment variable of the secret, the same for all ranks and servers of a job."""

LEAST = 16
"""Fewest characters: a shorter one could be guessed from a recorded handshake."""

FIT = re.compile(rf"[\w.+/=-]{{{LEAST},}}", re.ASCII)

ADVICE = f"set {VARIABLE} to one random text on all hosts, such as that of `openssl rand -hex 16`"


def new_secret() -> str:
    """A random secret of 128 bits."""
    return secrets.token_hex(16)


def known_secret() -> str | None:
    """The secret in the environment; None without one.  Raises `InputError` for an unfit one."""
    secret = os.environ.get(VARIABLE)
    if secret and not FIT.fullmatch(secret):
        raise InputError(
            f"{VARIABLE}: at least {LEAST} letters and digits are needed, without spaces and "
            f"colons; {ADVICE}"
        )
    return secret or None


@contextlib.contextmanager
def secret_file(address: str) -> Iterator[str]:
    """The path of a file that only this user can read, for `read_secret`; removed afterwards.

    address: host, port and secret of a server.
    """
    number, path = tempfile.mkstemp(prefix="simstrag-")  # of mode 600
    try:
        with os.fdopen(number, "w") as file:
            file.write(address)
        yield path
    finally:
        os.unlink(path)


def read_secret(path: str) -> str:
    """The address with its secret in a file of `secret_file`.

    Raises `InputError` unless the file is this user's, closed to others, and holds such an address.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(number) as file:
            about = os.fstat(number)
            closed = stat.S_ISREG(about.st_mode) and not about.st_mode & 0o077
            if about.st_uid != os.geteuid() or not closed:
                raise InputError(f"{path!r} is not a file of this user alone; {ADVICE}")
            address = file.read(1 << 10)
            if not FIT.fullmatch(address.rpartition(":")[2]):
                raise InputError(f"{path!r} holds no secret; {ADVICE}")
            return address
    except OSError as error:
        reason = f"the secret of the server cannot be read: {path!r}: {error.strerror}"
        raise InputError(f"{reason}; {ADVICE}") from None
