#!/usr/bin/env bash
# Run vectors and loops with the native libraries of the Linux wheels in dist/: those for x86-64,
# and under qemu-user those for aarch64, in Debian's Python for arm64.  Needs x86-64, Debian or
# Ubuntu, qemu-aarch64 and `make wheels`; downloads some 300 MB into build/try, changes nothing else.
#
# Tests of a musl library run in a Python of glibc, which gives it malloc, memcpy and pow; whether
# musl itself loads the library, and finds all its symbols, a program of its own tries.
set -euo pipefail
unset PYTHONPATH
cd "$(dirname "$0")/.."
top=$PWD
command -v qemu-aarch64 >/dev/null ||
    { echo "qemu-aarch64 is missing: no wheel was tried; apt-get install qemu-user" >&2; exit 1; }
[ -e dist ] || { echo "dist is missing: no wheel was tried; make wheels" >&2; exit 1; }
pip=(.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --upgrade)
tests=(tests/engine/test_{vectors,plain}.py tests/contract/test_compiled.py)
exports=$(.venv/bin/python -c "from tools.inspect_wheel import EXPORTS; print(*EXPORTS)")

# lay MACHINE DEBIAN-NAME PACKAGE...: Debian's packages in root, Python's in site.
lay() {
    local machine=$1 debian=$2 folder=$PWD/build/try/$1; shift 2
    mkdir -p "$folder"/{lists,cache,root}
    local apt=(
        apt-get -qq -o APT::Architecture="$debian" -o APT::Architectures::="$debian"
        -o Dir::State="$folder" -o Dir::State::Lists="$folder/lists" -o Dir::State::Status=/dev/null
        -o Dir::Cache="$folder/cache" -o Debug::NoLocking=true -o APT::Sandbox::User=
    )
    "${apt[@]}" update
    "${apt[@]}" install --download-only --no-install-recommends -y "$@"
    for package in "$folder"/cache/archives/*.deb; do dpkg -x "$package" "$folder/root"; done
    local version platforms
    version=$(python "$machine" -c "import sys; print('%d.%d' % sys.version_info[:2])")
    mapfile -t platforms < <(printf -- "--platform=manylinux_2_%d_$machine\n" {17..34})
    "${pip[@]}" -c constraints.txt --only-binary :all: --python-version "$version" \
        --platform "manylinux2014_$machine" "${platforms[@]}" --target "$folder/site" \
        dist/*manylinux*"_$machine.whl" pytest pytest-timeout pytest-xdist hypothesis
    touch "$folder/ready"
}

# python MACHINE ARGUMENT...: a Python for the machine.
python() {
    local machine=$1 usr=$top/build/try/$1/root/usr; shift
    case $machine in
    x86_64) "$top/.venv/bin/python" "$@" ;;
    aarch64) PYTHONHOME=$usr qemu-aarch64 -L "${usr%/usr}" "$(readlink -f "$usr/bin/python3")" "$@" ;;
    esac
}

for machine in x86_64 aarch64; do
    folder=$PWD/build/try/$machine native=simstrag/engine/native/kernel.so
    case $machine in
    x86_64) packages=(amd64 musl) emulator=() ;;
    aarch64) packages=(arm64 musl python3 libstdc++6) emulator=(qemu-aarch64) ;;
    esac
    [ -e "$folder/ready" ] || lay "$machine" "${packages[@]}"
    rm -rf "$folder"/{manylinux,musllinux,tests}
    cp -r tests "$folder"
    zig=(.venv/bin/python -m ziglang cc -target "$machine-linux")
    echo | "${zig[@]}-gnu" -shared -x c - -o "$folder/libc.so"  # musl's name, and nothing in it
    "${zig[@]}-musl" -O2 -dynamic tools/load_library.c -o "$folder/load_library"
    for system in manylinux musllinux; do
        wheel=$(echo dist/*"$system"*"_$machine.whl")
        unzip -q "$wheel" -d "$folder/$system"
        echo "$wheel"
        (
            cd "$folder"  # `simstrag` is the wheel's, `tests` are those of this folder
            export PYTHONPATH=$folder/$system:$folder/site PYTHONDONTWRITEBYTECODE=1
            [ "$system" = manylinux ] || export LD_LIBRARY_PATH=$folder
            python "$machine" -m pytest -q -p no:cacheprovider "${tests[@]}"
        )
    done
    "${emulator[@]}" "$folder/root/lib/ld-musl-$machine.so.1" "$folder/load_library" \
        "$folder/musllinux/$native" $exports
    echo "$machine musl loads $native"
done
