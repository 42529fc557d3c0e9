#!/usr/bin/env bash
# Installs third-party MCP servers for the tests, from npm and PyPI into .mcp-servers, at locked versions, each kind in
# its own environment. Repeated only if the lock files or this script have changed.
#
# If npm or an index is not reachable, the script prints a message and exits with 0: the tests of those servers are then
# skipped (or fail with REQUIRE=all).
set -uo pipefail
cd "$(dirname "$0")/.."

LOCKS=tests/mcp/servers
FOLDER=.mcp-servers
PYTHON=${PYTHON:-.venv/bin/python}
mkdir -p $FOLDER

# install_once NAME LOCK-FILE... -- COMMAND...: runs the command in a new folder of that name, unless it is up to date.
install_once() {
    local name=$1 locks=() stamp want
    shift
    while [ "$1" != -- ]; do
        locks+=("$LOCKS/$1")
        shift
    done
    shift
    stamp=$FOLDER/$name/.installed
    want=$(cat "${locks[@]}" "$0" | cksum)
    [ "$(cat "$stamp" 2>/dev/null)" != "$want" ] || return 0
    rm -rf "${FOLDER:?}/$name"
    mkdir -p "$FOLDER/$name"
    echo "mcp servers: installing $name"
    if "$@" "$FOLDER/$name" >"$FOLDER/$name.log" 2>&1; then
        echo "$want" >"$stamp"
    else
        echo "mcp servers: $name cannot be installed ($(tail -n 1 "$FOLDER/$name.log")); tests will be skipped" >&2
    fi
}

from_npm() {
    command -v npm >/dev/null 2>&1 || { echo "npm is not installed"; return 1; }
    cp $LOCKS/package.json $LOCKS/package-lock.json "$1" &&
        timeout 900 npm ci --prefix "$1" --no-audit --no-fund --ignore-scripts --fetch-retries 5 --fetch-timeout 60000
}

from_pypi() {
    "$PYTHON" -m venv "$2" &&
        timeout 900 "$2/bin/python" -m pip install --quiet --disable-pip-version-check -r "$LOCKS/$1"
}

install_once node package.json package-lock.json -- from_npm &
install_once python requirements.txt -- from_pypi requirements.txt &
install_once python-mcp1 requirements-mcp1.txt -- from_pypi requirements-mcp1.txt &
wait
