#!/usr/bin/env bash
# Installs the applications and MCP servers of tests/gauntlet from PyPI and npm into $GAUNTLET (default:
# ~/.cache/rllm-gym/gauntlet), each application of PyPI in its own environment. Repeated only if its packages or this
# script have changed.
#
# If npm or an index is not reachable, the script prints a message and exits with 0: those tests are then skipped (or
# fail with REQUIRE=all).
set -uo pipefail
cd "$(dirname "$0")/.."

FOLDER=${GAUNTLET:-${XDG_CACHE_HOME:-$HOME/.cache}/rllm-gym/gauntlet}
PYTHON=${PYTHON:-.venv/bin/python}
mkdir -p "$FOLDER"

# install_once NAME PACKAGE...: installs the packages into a new folder of that name, unless it is up to date.
install_once() {
    local name=$1 want
    shift
    want=$(echo "$@" | cat - "$0" | cksum)
    [ "$(cat "$FOLDER/$name/.installed" 2>/dev/null)" != "$want" ] || return 0
    rm -rf "${FOLDER:?}/$name"
    mkdir -p "$FOLDER/$name"
    echo "gauntlet: installing $name"
    if if [ "$name" = npm ]; then from_npm "$@"; else from_pypi "$name" "$@"; fi >"$FOLDER/$name.log" 2>&1; then
        echo "$want" >"$FOLDER/$name/.installed"
    else
        echo "gauntlet: $name cannot be installed ($(tail -n 1 "$FOLDER/$name.log")); tests will be skipped" >&2
    fi
}

from_npm() {
    command -v npm >/dev/null 2>&1 || { echo "npm is not installed"; return 1; }
    echo '{"private": true}' >"$FOLDER/npm/package.json"
    timeout 900 npm install --prefix "$FOLDER/npm" --no-audit --no-fund --ignore-scripts --omit=optional \
        --fetch-retries 5 --fetch-timeout 60000 "$@"
}

from_pypi() {
    "$PYTHON" -m venv "$FOLDER/$1" &&
        timeout 900 "$FOLDER/$1/bin/python" -m pip install --quiet --disable-pip-version-check "${@:2}"
}

packages=$("$PYTHON" -m tests.gauntlet.applications && "$PYTHON" -m tests.gauntlet.mcp_servers) || exit 1
# shellcheck disable=SC2046  # one word per package
install_once npm $(grep '^npm ' <<<"$packages" | tr ' ' '\n' | grep @ | sort -u)
while read -r name rest; do
    # shellcheck disable=SC2086
    [ "$name" = npm ] || install_once "$name" $rest
done <<<"$packages"
