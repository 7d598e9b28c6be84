"""`python -m tools.build_wheels FOLDER`: the sdist, and from it a wheel for every platform."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from build_backend.simstrag_build import TARGETS
from tools.inspect_wheel import main as inspect


def main(folder: Path) -> int:
    """Build and check all artifacts of a release; 1 where a check fails."""
    if folder.exists() and any(folder.iterdir()):
        sys.exit(f"{folder} is not empty: an artifact of an earlier build would be released again")
    build("--sdist", folder, Path())
    (sdist,) = folder.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as unpacked:
        with tarfile.open(sdist) as archive:
            archive.extractall(unpacked, filter="data")
        (source,) = Path(unpacked).iterdir()
        for tag in TARGETS:
            build("--wheel", folder, source, f"--config-setting=target={tag}")
    wheels = sorted(map(str, folder.glob("*.whl")))
    twine = [sys.executable, "-m", "twine", "check", "--strict", str(sdist), *wheels]
    failed = subprocess.run(twine, check=False).returncode or inspect(wheels)
    for path in (str(sdist), *wheels):
        print(f"{Path(path).stat().st_size / 1e3:8.0f} kB  {path}")
    return failed


def build(what: str, folder: Path, source: Path, *settings: str) -> None:
    """Run the build backend with the packages of this environment, quietly unless it fails."""
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        what,
        f"--outdir={folder.resolve()}",
    ]
    done = subprocess.run(
        [*command, *settings], cwd=source, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{done.stdout}{done.stderr}{what} {' '.join(settings)} failed")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
