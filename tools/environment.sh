# shellcheck shell=bash
# The Python environment of the tools; sourced by tools/test, tools/demo and .ci/run, under `set -euo pipefail`.
#
#     source tools/environment.sh
#     prepare_environment test    # or `run`, for the package without what the tests need
#
# activates an environment that holds this package (editable) and sets `repository_dir`, `environment_dir` and `python`.
# It is the one that SCANNET_PREP_VENV names (made if it is not there), else the active one (VIRTUAL_ENV), else
# <repository>/.venv, made once with $PYTHON or the newest Python from 3.11 on PATH. Packages are installed again
# when pyproject.toml has changed.

repository_dir=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
export PIP_USER=0  # a user's pip.conf that says otherwise does not work in virtual environments
unset PYTHONHOME PYTHONPATH  # ROS and others put packages there that shadow the environment's

say() {
    printf '%s\n' "$@" >&2
}

# fail MESSAGE [HINT]...
fail() {
    say "error: $1"
    shift
    while [ $# -gt 0 ]; do
        say "hint: $1"
        shift
    done
    exit 1
}

# Version of an interpreter that can be used, such as 3.11; fails for others, and for pyenv's shims that lead nowhere.
supported_version() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2]); sys.exit(sys.version_info < (3, 11))' 2>/dev/null |
        grep .
}

has_pip() {
    "$1" -m pip --version >/dev/null 2>&1
}

find_base_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3.14 python3.13 python3.12 python3.11 python3; do
        if supported_version "$candidate" >/dev/null; then
            base_python=$candidate
            return
        fi
        if [ "$candidate" = "${PYTHON:-}" ]; then
            fail "PYTHON=$PYTHON is not a Python 3.11 or newer" "name another one, or \`unset PYTHON\`"
        fi
    done
    fail "there is no Python 3.11 or newer on PATH" \
        "Debian 12, Ubuntu 24.04 or newer: apt install python3 python3-venv" \
        "elsewhere: uv python install 3.12, or: conda create -n scannet-prep python=3.12" \
        "or name one that is not on PATH: PYTHON=/path/to/python3 $0"
}

make_with_venv() {
    "$base_python" -m venv "$1"
}

make_with_uv() {
    uv venv --seed --python "$base_python" "$1"
}

make_with_virtualenv() {
    "$base_python" -m virtualenv "$1" || virtualenv --python "$base_python" "$1"
}

make_with_outer_pip() {
    "$base_python" -m venv --without-pip "$1" && "$base_python" -m pip --python "$1/bin/python" install pip
}

# Debian keeps half of the venv module in a package of its own, which needs root to install: hence the other ways.
make_environment() {
    local way version
    say "making a virtual environment in $environment_dir"
    for way in venv uv virtualenv outer_pip; do
        if "make_with_$way" "$environment_dir" >>"$log_path" 2>&1 && has_pip "$environment_dir/bin/python"; then
            return
        fi
        rm -rf -- "$environment_dir"
    done
    version=$(supported_version "$base_python")
    say "$(tail -n 30 -- "$log_path")"
    fail "$base_python cannot make a virtual environment (what was tried is above)" \
        "Debian, Ubuntu: apt install python3-venv, or python$version-venv if that is not the system's own Python" \
        "without root: install uv, https://docs.astral.sh/uv"
}

# An environment made by uv has no pip.
add_pip() {
    if has_pip "$python" || {
        "$python" -m ensurepip || uv pip install --python "$python" pip || python3 -m pip --python "$python" install pip
    } >>"$log_path" 2>&1; then
        return
    fi
    say "$(tail -n 30 -- "$log_path")"
    fail "$environment_dir has no pip, and it cannot be added (what was tried is above)" \
        "apt install python3-venv, or use an environment that has pip"
}

# What `pip install --group dev` would install; pip knows that option only from 25.1 on.
list_dev_requirements() {
    "$python" - "$repository_dir/pyproject.toml" <<'PYTHON'
import sys
import tomllib
from pathlib import Path

for requirement in tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["dependency-groups"]["dev"]:
    print(requirement)
PYTHON
}

# This package and the requirements listed. Never numba from source, which takes LLVM and an hour.
pip_install() {
    (CDPATH='' cd -- "$repository_dir" && "$python" -m pip install --disable-pip-version-check \
        --only-binary numba,llvmlite --requirement "$requirements_path" --editable .) >>"$log_path" 2>&1
}

# install_packages run|test
install_packages() {
    local requirements_path=$environment_dir/scannet-prep-requirements.txt
    say "installing scannet-prep into $environment_dir (downloads about 100 MB the first time)"
    : >"$requirements_path"
    if [ "$1" = test ]; then
        list_dev_requirements >"$requirements_path"
    fi
    if pip_install; then
        return
    fi
    say "$(tail -n 15 -- "$log_path")"
    if grep -qE 'NewConnectionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError|name resolution' -- "$log_path"; then
        fail "the package index cannot be reached (pip's words are above)" \
            "check the network, HTTPS_PROXY and pip's index (PIP_INDEX_URL, \`pip config list\`); then start this again"
    fi
    fail "the packages cannot be installed into $environment_dir (pip's words are above)"
}

# What an installation depends on; a moved repository leaves an environment that points to the old place.
stamp_text() {
    local version checksum
    version=$(supported_version "$python") || return 1
    checksum=$(cksum <"$repository_dir/pyproject.toml")
    printf 'pyproject.toml %s, Python %s, %s\n' "$checksum" "$version" "$repository_dir"
}

# is_ready run|test
is_ready() {
    local expected
    expected=$(stamp_text) && [ "$(cat -- "$environment_dir/scannet-prep-$1.stamp" 2>/dev/null)" = "$expected" ]
}

# set_up run|test: in a subshell, for its traps; an environment that it began and did not finish is removed.
set_up() (
    is_unfinished=false
    log_path=$(mktemp)
    trap 'rm -f -- "$log_path"; if [ "$is_unfinished" = true ]; then rm -rf -- "$environment_dir"; fi' EXIT
    trap 'exit 130' INT
    trap 'exit 143' HUP TERM
    if ! supported_version "$python" >/dev/null; then
        find_base_python
        is_unfinished=true
        rm -rf -- "$environment_dir"
        make_environment
    fi
    add_pip
    rm -f -- "$environment_dir"/scannet-prep-*.stamp
    install_packages "$1"
    stamp_text >"$environment_dir/scannet-prep-run.stamp"
    if [ "$1" = test ]; then
        stamp_text >"$environment_dir/scannet-prep-test.stamp"
    fi
    is_unfinished=false
)

# lock_set_up INTERPRETER: waits until no other process sets up. The lock belongs to file descriptor 9 and ends when that
# is closed, at the latest with the process. Taken by Python, because macOS has no flock command, and on this very file,
# because it is there and, as NFS demands, writable.
lock_set_up() {
    local file=$repository_dir/tools/environment.sh
    if [ -w "$file" ]; then
        exec 9<>"$file"
    else
        exec 9<"$file"
    fi
    "$1" - <<'PYTHON' || say "warning: cannot lock $file; do not start a second set-up meanwhile"
import fcntl
import sys

try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("waiting for another set-up to finish", file=sys.stderr)
    fcntl.flock(9, fcntl.LOCK_EX)
PYTHON
}

# Where the environment is, or will be. One that was given and is there is never removed, so it has to be usable.
find_environment() {
    local name=
    environment_dir=$repository_dir/.venv
    if [ -n "${SCANNET_PREP_VENV:-}" ]; then
        name=SCANNET_PREP_VENV
        environment_dir=$SCANNET_PREP_VENV
    elif [ -n "${VIRTUAL_ENV:-}" ]; then
        name=VIRTUAL_ENV
        environment_dir=$VIRTUAL_ENV
    fi
    if [ "${environment_dir#/}" = "$environment_dir" ]; then
        environment_dir=$PWD/$environment_dir
    fi
    python=$environment_dir/bin/python
    if [ -z "$name" ] || supported_version "$python" >/dev/null; then
        return
    fi
    if [ "$name" = VIRTUAL_ENV ] || [ -n "$(ls -A -- "$environment_dir" 2>/dev/null)" ]; then
        fail "$name=$environment_dir is not a virtual environment with Python 3.11 or newer" \
            "\`unset $name\` to have one made in $repository_dir/.venv"
    fi
}

# prepare_environment run|test
prepare_environment() {
    find_environment
    if ! is_ready "$1"; then
        base_python=$python
        if ! supported_version "$python" >/dev/null; then
            find_base_python
        fi
        lock_set_up "$base_python"
        if ! is_ready "$1"; then
            set_up "$1"
        fi
        exec 9>&-
    fi
    export VIRTUAL_ENV=$environment_dir PATH=$environment_dir/bin:$PATH
}
