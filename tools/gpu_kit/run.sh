#!/usr/bin/env bash
# Measure on a GPU, part by part, into $OUT/results.tgz.  A part that fails stops no other.
#
#   run.sh [PART...]       all parts in this order, or those named
#
#   install      this kit beside the machine's packages
#   doctor       what is installed, and the devices
#   steps        step times of resnet50 and gpt2 at batches that fill the device
#   contention   those of resnet50 in TF32 and bf16 beside one and two processes on the GPU
#   record       simstrag.ddp.record of two ranks, without and with a slow one, and diagnose
#   ranks        real ranks under bsp, amp_all and korel, matrix products coming and going
#   allreduce    all-reduces of CUDA tensors over gloo
#   compile      the nominal steps of resnet50 under torch.compile
#   power        of resnet50, idle and at the nominal steps
#   tests        those that use a device
#
# The same command goes on where it stopped: parts that ended are not run again, and calibrations
# keep their samples.  On another machine put the archive beside this script first.
#
# BUDGET: seconds until it stops, 345 by default.  OUT: folder of the archive.  PYTHON: a Python with
# torch.  SITE: folder for the packages.  DEVICE=cpu tries it with small workloads, no GPU needed.
set -uo pipefail
kit=$(cd "$(dirname "$0")" && pwd)
out=$(realpath -m "${OUT:-$kit/results}")
site=$(realpath -m "${SITE:-/tmp/simstrag-site}")
python=${PYTHON:-python3} device=${DEVICE:-cuda} budget=${BUDGET:-345}
work=$site/results failed=0
[ $# -gt 0 ] || set -- install doctor steps contention record ranks allreduce compile power tests
export PYTHONPATH=$site PYTHONUNBUFFERED=1 GLOO_SOCKET_IFNAME=lo

if [ "$device" = cpu ]; then
    models=(mlp transformer) precisions=(fp64 fp32_of_fp64) ranked=digits load=cpu fill=64 short=4
    fewer=(--precision fp64 --precision fp32_of_fp64)
    tests=(tests/workloads/test_workloads.py)
else
    models=(resnet50 gpt2) precisions=(tf32 bf16) ranked=resnet50 load=gemm fill=64 short=1.55 fewer=()
    tests=(tests/workloads/test_workloads.py tests/calibration/test_calibration_steps.py
        tests/ddp/test_ddp_precision.py tests/learning/test_learning_on_gpu.py)
fi

# part NAME LIMIT COMMAND...: run a command within LIMIT seconds, keep what it prints, archive.
part() {
    local name=$1 limit=$2 code=0 begun=$SECONDS left=$((budget - SECONDS - 10))
    shift 2
    [ ! -e "$work/$name.done" ] || return 0
    [ "$limit" -lt "$left" ] || limit=$left
    if [ "$limit" -lt 10 ]; then
        echo "[$SECONDS s] $name: no time left; the same command goes on"
        failed=1
        return 1
    fi
    timeout --signal INT --kill-after 8 "$limit" "$@" >>"$work/$name.log" 2>&1 || code=$?
    echo "[$SECONDS s] $name: exit code $code after $((SECONDS - begun)) s" |
        tee -a "$work/summary.txt"
    [ "$code" = 0 ] && touch "$work/$name.done" || { failed=1; tail -n 4 "$work/$name.log"; }
    tar czf "$out/results.tgz" -C "$work" .
    return "$code"
}

simstrag() { part "$1" "$2" "$python" -m simstrag "${@:3}"; }

# measure NAME LIMIT MINUTES OPTIONS...: a calibration in this folder of results.
measure() {
    simstrag "$1" "$2" calibrate --device "$device" --minutes "$3" --out "$work/$1" "${@:4}"
}

install() {
    [ -d "$site/simstrag" ] || # the marks are of another machine
        (cd "$work" && rm -f install.done doctor.done nvidia-smi.done packages.done)
    part install 60 "$python" -m pip install --quiet \
        --no-index --no-deps --no-compile --upgrade --target "$site" "$kit"/wheels/*.whl
}

doctor() {
    simstrag doctor 40 doctor
    [ "$device" = cpu ] || part nvidia-smi 15 nvidia-smi -q
    part packages 20 "$python" -m pip list
}

record() {
    local slow name
    for slow in -1 1; do
        name=record-slow$slow
        part "$name" 40 "$python" -m torch.distributed.run --nproc-per-node 2 \
            "$kit/record_ranks.py" --workload "$ranked" --device "${device/cuda/cuda:0}" \
            --batch "$fill" --slow "$slow" --seconds 12 --out "$work/$name" &&
            simstrag "whatif-slow$slow" 30 diagnose "$work/$name" --compare none --json
    done
}

ranks() {
    local policy
    [ -e "$work/load.json" ] || "$python" - "$load" "$work/load.json" <<'SCHEDULE'
import sys
from simstrag.validation import Schedule

kind, path = sys.argv[1:]
Schedule.drawn([1], 600, 0, (kind,), (1.0,), mean_on=6, mean_off=6).write(path)
SCHEDULE
    for policy in bsp amp_all korel; do
        simstrag "ranks-$policy" 60 ddp "$ranked" --ranks 2 --policy "$policy" --batch "$fill" --samples $((fill * 160)) \
            --load "$work/load.json" --out "$work/ranks-$policy"
    done
}

mkdir -p "$work" "$out"
cd "$work" || exit 1 # a checkout in the current folder would hide the installed package
[ ! -e "$kit/results.tgz" ] || [ -e "$work/summary.txt" ] || tar xzf "$kit/results.tgz" -C "$work"
for each in "$@"; do
    case $each in
        install) install || exit 1 ;;
        doctor) doctor ;;
        steps)
            for model in "${models[@]}"; do
                measure "steps-$model" 95 1.05 --workload "$model" --part step "${fewer[@]}"
            done ;;
        contention)
            measure contention 120 "$short" --workload "${models[0]}" --part step --part contention \
                --precision "${precisions[0]}" --precision "${precisions[1]}" ;;
        record) record ;;
        ranks) ranks ;;
        allreduce) measure allreduce 70 0.65 --workload "${models[0]}" --part allreduce ;;
        compile)
            measure compile 200 0.5 --workload "${models[0]}" --part step --compile --batch "$fill" \
                --precision "${precisions[0]}" --precision "${precisions[1]}" ;;
        tests)
            (cd "$kit" && part tests 60 "$python" -m pytest -c /dev/null -q -p no:cacheprovider \
                -m "not thorough" "${tests[@]}") || failed=1 ;;
        power) measure power 50 0.4 --workload "${models[0]}" --part power ;;
        *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done
exit "$failed"
