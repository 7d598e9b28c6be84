#!/usr/bin/env bash
# Measure on a GPU, part by part, into $OUT.  A part that fails stops no other.
#
#   run.sh [PART...]       all parts in this order, or those named; `install` comes first
#
#   install      a virtual environment with this kit, on top of what the machine has   1 minute
#   doctor       what is installed, the devices, and the tests that use a device       3
#   calibrate    step times of resnet50 and gpt2 in all precisions                    10
#   contention   those of TF32 and bf16 beside other processes on the GPU              8
#   ranks        real ranks under bsp, amp_all and korel, GEMM load beside one         6
#   more         step times of bert_base and vit_b16                                   5
#
# OUT: results, by default `results` in this folder.  VENV: the environment.  PYTHON: the Python to
# make it of.  DEVICE=cpu tries the script with small workloads where there is no GPU.
set -uo pipefail
kit=$(cd "$(dirname "$0")" && pwd)
out=$(realpath -m "${OUT:-$kit/results}")
venv=$(realpath -m "${VENV:-$kit/venv}")
device=${DEVICE:-cuda}
[ $# -gt 0 ] || set -- install doctor calibrate contention ranks more
failed=0

if [ "$device" = cpu ]; then
    first=(mlp digits) later=(transformer) pairs=("fp64 fp32_of_fp64") ranked=(digits) load=cpu
else
    first=(resnet50 gpt2) later=(bert_base vit_b16) pairs=("tf32 bf16" "fp32 fp16")
    ranked=(digits gpt2) load=gemm
fi

# do_for NAME SECONDS COMMAND...: run a command, keep what it prints, note how it ended.
do_for() {
    local name=$1 limit=$2 code=0 begun=$SECONDS
    shift 2
    timeout --signal INT --kill-after 20 "$limit" "$@" >"$out/$name.log" 2>&1 || code=$?
    echo "$name: exit code $code after $((SECONDS - begun)) s" | tee -a "$out/summary.txt"
    if [ "$code" != 0 ]; then
        failed=1
        tail -n 5 "$out/$name.log"
    fi
    return "$code"
}

# calibrate NAME MINUTES WORKLOAD PAIR PARTS...: parts of a calibration in a pair of precisions.
calibrate() {
    local minutes=$2 workload=$3 full=${4% *} reduced=${4#* } options=() needed part
    local name=$1-$workload-$reduced
    shift 4
    for part in "$@"; do options+=(--part "$part"); done
    options+=(--workload "$workload" --device "$device" --precision "$full" --precision "$reduced")
    options+=(--out "$out/$name")
    do_for "$name" $((60 * minutes + 120)) simstrag calibrate "${options[@]}" --minutes "$minutes"
    needed=$(sed -n 's/.* take about \([0-9]*\).[0-9]* minutes; give.*/\1/p' "$out/$name.log")
    [ -z "$needed" ] ||  # too few were refused
        do_for "$name" $((60 * needed + 180)) simstrag calibrate "${options[@]}" \
            --minutes $((needed + 1))
}

install() {
    do_for environment 60 "${PYTHON:-python3}" -m venv --system-site-packages "$venv" &&
        do_for install 120 python -m pip install --no-index --no-deps "$kit"/wheels/*.whl
}

doctor() {
    do_for doctor 60 simstrag doctor
    do_for packages 30 python -m pip list
    [ "$device" = cpu ] || do_for nvidia-smi 30 nvidia-smi -q
    cd "$kit" && do_for tests 150 python -m pytest -c /dev/null -q -m "not thorough" \
        tests/test_workloads.py tests/test_calibration_steps.py tests/test_ddp_hook.py \
        tests/test_ddp_precision.py tests/test_ddp_trainer.py tests/test_learning_on_gpu.py
}

ranks() {
    local workload policy
    python - "$load" "$out/load.json" <<'SCHEDULE'
import sys
from simstrag.validation import Schedule

kind, path = sys.argv[1:]
Schedule.drawn([1], 600, 0, (kind,), (0.5, 1.0), mean_on=5, mean_off=5).write(path)
SCHEDULE
    for workload in "${ranked[@]}"; do
        for policy in bsp amp_all korel; do
            do_for "ranks-$workload-$policy" 100 simstrag ddp "$workload" --ranks 2 \
                --policy "$policy" --load "$out/load.json" --out "$out/ranks-$workload-$policy"
        done
    done
}

mkdir -p "$out"
export PATH="$venv/bin:$PATH"
for part in "$@"; do
    case $part in
        install) install || exit 1 ;;
        doctor) doctor ;;
        calibrate)
            for each in "${first[@]}"; do
                for pair in "${pairs[@]}"; do calibrate steps 2 "$each" "$pair" step; done
            done ;;
        contention)
            for each in "${first[@]}"; do
                calibrate contention 4 "$each" "${pairs[0]}" step contention
            done ;;
        ranks) ranks ;;
        more)
            for each in "${later[@]}"; do
                for pair in "${pairs[@]}"; do calibrate steps 1 "$each" "$pair" step; done
            done ;;
        *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done
exit "$failed"
