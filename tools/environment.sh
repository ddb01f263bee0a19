# shellcheck shell=bash
# The Python environment of the tools; to be sourced under `set -euo pipefail`.
#
#     source tools/environment.sh
#     prepare_environment run     # or `test`, which adds the packages that tests need
#
# This makes <repository>/.venv, or the folder that SCANNET_PREP_VENV names, with $PYTHON or the
# newest Python on PATH, and installs this package there (editable). If pyproject.toml has changed,
# it is installed again. An active environment is neither used nor changed. These variables are set:
#
#     repository_dir, environment_dir, python

oldest_python=3.10
repository_dir=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
environment_dir=${SCANNET_PREP_VENV:-$repository_dir/.venv}
if [ "${environment_dir#/}" = "$environment_dir" ]; then
    environment_dir=$PWD/$environment_dir
fi
python=$environment_dir/bin/python
# A pip.conf with `user = true` does not work in an environment.
export PIP_USER=0 PIP_DISABLE_PIP_VERSION_CHECK=1
# ROS and other programs put packages there that shadow those of the environment.
unset PYTHONHOME PYTHONPATH
# Containers set it. The tests start hundreds of processes, each of which would compile everything.
unset PYTHONDONTWRITEBYTECODE

say() {
    printf '%s\n' "$@" >&2
}

quoted() {
    printf '%q' "$1"
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

# supported_version PYTHON
# Print the version of an interpreter, such as 3.11. Fails if it is too old or cannot be run, as
# shims of pyenv without a version.
supported_version() {
    "$1" -c "import sys; print('%d.%d' % sys.version_info[:2]); sys.exit(sys.version_info < (${oldest_python/./, }))" \
        2>/dev/null | grep .
}

find_base_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3.14 python3.13 python3.12 python3.11 python3.10 python3; do
        if supported_version "$candidate" >/dev/null; then
            base_python=$candidate
            return
        fi
        if [ "$candidate" = "${PYTHON:-}" ]; then
            fail "PYTHON=$PYTHON is not Python $oldest_python or newer" "name another one, or run: unset PYTHON"
        fi
    done
    fail "there is no Python $oldest_python or newer on PATH" \
        "Debian, Ubuntu: apt install python3 python3-venv; elsewhere: uv python install 3.12" \
        "or name one that is not on PATH: PYTHON=/path/to/python3 $0"
}

has_pip() {
    "$python" -m pip --version >>"$log_path" 2>&1
}

# On Debian, the module venv is incomplete without a package that only root can install. So try uv
# too.
make_environment() {
    local way base_python
    if [ -n "$(ls -A -- "$environment_dir" 2>/dev/null)" ]; then
        fail "$environment_dir is not a virtual environment with pip" \
            "name a new folder: SCANNET_PREP_VENV=FOLDER $0; or remove that one, if an interrupted set-up left it behind"
    fi
    find_base_python
    say "making a virtual environment in $environment_dir"
    trap 'rm -rf -- "$environment_dir"; exit 130' INT HUP TERM
    for way in "$base_python -m venv" "uv venv --seed --python $base_python"; do
        # shellcheck disable=SC2086  # the words of the command
        if $way "$environment_dir" >>"$log_path" 2>&1 && has_pip; then
            trap - INT HUP TERM
            return
        fi
        rm -rf -- "$environment_dir"
    done
    say "$(tail -n 30 -- "$log_path")"
    fail "$base_python cannot make a virtual environment (see above)" \
        "Debian, Ubuntu: apt install python3-venv; without root: install uv, https://docs.astral.sh/uv"
}

# Fail if the environment is complete but has another Python than the requested one.
check_version() {
    local has wanted
    has=$(supported_version "$python") ||
        fail "$environment_dir has a Python older than $oldest_python" "remove it: rm -r $(quoted "$environment_dir")"
    if [ -n "${PYTHON:-}" ]; then
        find_base_python
        wanted=$(supported_version "$PYTHON")
        if [ "$has" != "$wanted" ]; then
            fail "PYTHON=$PYTHON is Python $wanted, but $environment_dir was made with Python $has" \
                "use another folder: SCANNET_PREP_VENV=.venv-$wanted PYTHON=$(quoted "$PYTHON") $(quoted "$0")" \
                "or remove that one: rm -r $(quoted "$environment_dir")"
        fi
    fi
}

# pip_install EXTRAS
# Modules are compiled when they are imported.
pip_install() {
    "$python" -m pip install --no-compile --editable "$repository_dir${1:+[$1]}" >>"$log_path" 2>&1
}

# install_packages EXTRAS
install_packages() {
    say "installing scannet-prep into $environment_dir (downloads about 100 MB the first time)"
    if pip_install "$1"; then
        return
    fi
    say "$(tail -n 15 -- "$log_path")"
    fail "the packages cannot be installed into $environment_dir (see above)" \
        "check the network, HTTPS_PROXY and PIP_INDEX_URL, then run the same command again"
}

# prepare_environment run|test
prepare_environment() {
    local extras='' stamp_path stamp log_path
    if [ "$1" = test ]; then
        extras=dev
    fi
    log_path=$(mktemp)
    has_pip || make_environment
    check_version
    # If the repository was moved, the environment still points to its old folder.
    stamp="$(cksum <"$repository_dir/pyproject.toml") $repository_dir"
    stamp_path=$environment_dir/scannet-prep-$1.stamp
    if [ "$(cat -- "$stamp_path" 2>/dev/null)" != "$stamp" ]; then
        install_packages "$extras"
        printf '%s\n' "$stamp" >"$stamp_path"
    fi
    rm -f -- "$log_path"
}
