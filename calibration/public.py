"""Profiles derived from public measurements: which there are, and the command that makes them.

`python -m simstrag.calibration.public NAME TRACES --out FILE` makes one anew from a folder of the
public traces, the same to the digits it is written with.  Each source has a file of its own,
`public_*.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from simstrag.calibration import public_amp, public_gavel, public_nccl, public_pollux
from simstrag.profile.profile import Profile

__all__ = ["PUBLIC"]

PUBLIC: dict[str, Callable[[Path], Profile]] = {
    "a100-nccl-tests": public_nccl.a100,
    **{
        f"t4-pollux-{application}": partial(public_pollux.t4, application=application)
        for application in public_pollux.APPLICATIONS
    },
    **{
        f"{gpu}-gavel": partial(public_gavel.colocation, gpu=gpu) for gpu in ("k80", "p100", "v100")
    },
    "published-amp-ratios": public_amp.ratios,
}
"""Name of a profile to what makes it of a folder of public traces."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m simstrag.calibration.public", description=__doc__
    )
    parser.add_argument("name", choices=PUBLIC)
    parser.add_argument("traces", type=Path, help="folder of the public traces")
    parser.add_argument("--out", type=Path, required=True, help="the profile to write")
    given = parser.parse_args(arguments)
    given.out.write_text(PUBLIC[given.name](given.traces).text)


if __name__ == "__main__":
    main()
