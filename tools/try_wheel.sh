#!/usr/bin/env bash
# Build the sdist and from it the wheel; install the wheel and compare policies, outside this tree.
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
mkdir -p "$outside"/{examples,calibration/profiles,traces/recorded}
cp calibration/profiles/intel-xeon-2-core-amx.json "$outside/calibration/profiles"
cp traces/recorded/intel-xeon-2-core-amx.csv "$outside/traces/recorded"
sed -e "s/^samples: 46080/samples: 4608/" -e "s/^target_progress: 310/target_progress: 30/" \
    -e "s/^seeds: 20/seeds: 2/" examples/demo.yaml >"$outside/examples/demo.yaml"

"${2:-.venv/bin/python}" -m venv "$outside/venv"
bin="$outside/venv/bin"
"$bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
    -c constraints.txt "$wheel"
cd "$outside/examples"
"$bin/simstrag" compare demo.yaml --out report
