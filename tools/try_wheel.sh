#!/usr/bin/env bash
# Build the sdist and from it the wheel; install the wheel and run the demo, outside this tree.
# `tools/try_wheel.sh WHEEL [PYTHON]` tries a wheel that was built, under another Python if given.
set -euo pipefail
unset PYTHONPATH
cd "$(dirname "$0")/.."
outside=$(mktemp -d)
trap 'rm -rf "$outside"' EXIT

if [ $# -gt 0 ]; then
    wheel=$(realpath "$1")
else
    .venv/bin/python -m build --outdir "$outside/dist" . >"$outside/build.log" 2>&1 ||
        { cat "$outside/build.log"; exit 1; }
    wheel=$(echo "$outside"/dist/*.whl)
fi
"${2:-.venv/bin/python}" -m venv "$outside/venv"
bin="$outside/venv/bin"
"$bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
    -c constraints.txt "$wheel"
cd "$outside"
"$bin/simstrag" demo --out demo
