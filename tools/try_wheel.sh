#!/usr/bin/env bash
# Build the sdist and from it the wheel; install the wheel and run the demo, outside this tree.
set -euo pipefail
unset PYTHONPATH
cd "$(dirname "$0")/.."
outside=$(mktemp -d)
trap 'rm -rf "$outside"' EXIT

.venv/bin/python -m build --outdir "$outside/dist" . >"$outside/build.log" 2>&1 ||
    { cat "$outside/build.log"; exit 1; }
.venv/bin/python -m venv "$outside/venv"
bin="$outside/venv/bin"
"$bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
    -c constraints.txt "$outside"/dist/*.whl
cd "$outside"
"$bin/simstrag" demo --out demo
