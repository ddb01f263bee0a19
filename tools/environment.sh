# shellcheck shell=bash
# The Python environment of the tools; to be sourced under `set -euo pipefail`.
#
#     source tools/environment.sh
#     show_help "$@"
#     prepare_environment run     # or `test`, which adds the packages that tests need
#
# This makes <repository>/.venv, or the folder that SCANNET_PREP_VENV names, with $PYTHON or the
# newest Python on PATH that can make environments, and installs this package there (editable). If
# pyproject.toml has changed, it is installed again. An active environment is neither used nor
# changed. These variables are set:
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

# show_help [ARGUMENT...]
# Print the comment at the top of the script and exit, if the first argument asks for help.
show_help() {
    case "${1:-}" in
    -h | --help)
        sed -n '2,${/^#/!q;s/^# \{0,1\}//;p;}' "$0"
        exit 0
        ;;
    esac
}

quoted() {
    printf '%q' "$1"
}

# fail MESSAGE [HINT]...
fail() {
    rm -f -- "${log_path:-}"
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

# On Debian, the module venv is incomplete without a package that only root can install.
has_venv() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null
}

# The first Python that can make environments; if none can, the first one.
find_base_python() {
    local candidate
    base_python=
    for candidate in ${PYTHON:+"$PYTHON"} python3.14 python3.13 python3.12 python3.11 python3.10 python3; do
        if supported_version "$candidate" >/dev/null; then
            base_python=${base_python:-$candidate}
            if [ "$candidate" = "${PYTHON:-}" ] || has_venv "$candidate"; then
                base_python=$candidate
                return
            fi
        elif [ "$candidate" = "${PYTHON:-}" ]; then
            fail "PYTHON=$PYTHON is not Python $oldest_python or newer" "name another one, or run: unset PYTHON"
        fi
    done
    if [ -z "$base_python" ]; then
        fail "there is no Python $oldest_python or newer on PATH" \
            "Debian, Ubuntu: apt install python3 python3-venv; elsewhere: uv python install 3.12" \
            "or name one that is not on PATH: PYTHON=/path/to/python3 $0"
    fi
}

has_pip() {
    "$python" -m pip --version >>"$log_path" 2>&1
}

# venv_package PYTHON
# Print the name of the package of Debian and Ubuntu that completes the module venv.
venv_package() {
    local version
    version=$(supported_version "$1")
    if [ "$version" = "$(supported_version python3)" ]; then
        version=3
    fi
    printf 'python%s-venv\n' "$version"
}

# Completes an environment without pip, such as `python3 -m venv` leaves on Debian when it fails.
make_environment() {
    local base_python is_new='' way
    if [ -z "$(ls -A -- "$environment_dir" 2>/dev/null)" ]; then
        is_new=yes
    elif [ ! -e "$environment_dir/pyvenv.cfg" ]; then
        fail "$environment_dir is not a virtual environment" \
            "name a new folder: SCANNET_PREP_VENV=FOLDER $0; or remove that one, if an interrupted set-up left it behind"
    fi
    find_base_python
    if has_venv "$base_python"; then
        way=("$base_python" -m venv)
    elif command -v uv >/dev/null; then
        way=(uv venv --seed --allow-existing --python "$base_python")
    else
        fail "$base_python cannot make a virtual environment: it has no module ensurepip" \
            "Debian, Ubuntu: sudo apt install $(venv_package "$base_python"); without root: install uv, https://docs.astral.sh/uv"
    fi
    say "making a virtual environment in $environment_dir"
    trap '[ -z "$is_new" ] || rm -rf -- "$environment_dir"; exit 130' INT HUP TERM
    if "${way[@]}" "$environment_dir" >>"$log_path" 2>&1 && has_pip; then
        trap - INT HUP TERM
        return
    fi
    say "$(tail -n 30 -- "$log_path")"
    if [ -n "$is_new" ]; then
        rm -rf -- "$environment_dir"
        fail "$base_python cannot make a virtual environment (see above)"
    fi
    fail "$environment_dir is a virtual environment without pip, and cannot be completed (see above)" \
        "remove it: rm -r $(quoted "$environment_dir")"
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
    say "installing scannet-prep into $environment_dir (the first time, up to 100 MB are downloaded)"
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
