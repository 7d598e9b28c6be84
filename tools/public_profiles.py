"""Makes the profiles that are derived from public measurements; README.md lists them.

`python -m tools.public_profiles NAME TRACES --out FILE` writes one profile from a folder of public
measurements.  The result equals the shipped profile to the digits that it is written with.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from simstrag.calibration import import_nccl_tests
from simstrag.profile.profile import Profile
from tools import gavel, pollux, published_amp_ratios


def a100_all_reduce(traces: Path) -> Profile:
    """All-reduce of 2, 8, 32 and 128 A100s, 8 per node, from `nccl-tests-a100` in `traces`."""
    folder = traces / "nccl-tests-a100"
    return import_nccl_tests.profile(
        [folder / f"nccl_{gpus}.log" for gpus in (2, 8, 32, 128)],
        "a100-nccl-tests",
        source="NetX-lab/Echo @15f0d12 (MIT): nccl-tests all-reduce logs, single runs",
        note="The library changes protocols with the size, which no single alpha and bandwidth "
        "follow: the fits of one placement over all sizes are off by up to 80 % (residuals). The "
        "constants of allreduce are of 1 MiB and more; those of links inside a node, told by 2 "
        "and 8 GPUs only, predict one of the two from the other badly (held_out).",
        date="2026-11-21",
        command="python -m tools.public_profiles a100-nccl-tests TRACES --out a100-nccl-tests.json",
    )


PUBLIC: dict[str, Callable[[Path], Profile]] = {
    "a100-nccl-tests": a100_all_reduce,
    **{
        f"t4-pollux-{application}": partial(pollux.t4, application=application)
        for application in pollux.APPLICATIONS
    },
    **{f"{gpu}-gavel": partial(gavel.colocation, gpu=gpu) for gpu in ("k80", "p100", "v100")},
    "published-amp-ratios": published_amp_ratios.ratios,
}
"""Each profile's name, and the function that makes it from a folder of public measurements."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.public_profiles", description=__doc__)
    parser.add_argument("name", choices=PUBLIC)
    parser.add_argument("traces", type=Path, help="folder of the public measurements")
    parser.add_argument("--out", type=Path, required=True, help="the profile to write")
    options = parser.parse_args(arguments)
    options.out.write_text(PUBLIC[options.name](options.traces).text)


if __name__ == "__main__":
    main()
