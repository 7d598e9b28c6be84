#!/usr/bin/env bash
# Lay into build/gpu-kit what a machine with a GPU and no network needs to measure: the wheels, the
# tests and the scripts.  PYTHON_THERE: the machine's Python, 3.12 by default.
set -euo pipefail
cd "$(dirname "$0")/../.."
kit=build/gpu-kit
pip=(.venv/bin/python -m pip --quiet --disable-pip-version-check)
there=(--only-binary :all: --implementation cp --python-version "${PYTHON_THERE:-3.12}"
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64)

rm -rf "$kit"
mkdir -p "$kit/wheels"
"${pip[@]}" wheel --no-deps --wheel-dir "$kit/wheels" .
"${pip[@]}" download --no-deps "${there[@]}" --dest "$kit/wheels" \
    --constraint constraints.txt --requirement tools/gpu_kit/wheels.txt
cp -r tests "$kit"
cp tools/gpu_kit/run.sh tools/gpu_kit/record_ranks.py "$kit"
size=$(du -sm "$kit" | cut -f1)
echo "$kit: $size MiB; on the machine with the GPU: $kit/run.sh --help"
[ "$size" -lt 60 ] || { echo "$kit: must be below 60 MiB" >&2; exit 1; }
