#!/usr/bin/env bash
# Installs MCP servers by others, for the tests: from npm and PyPI into .mcp-servers, at locked versions, each kind in an
# environment of its own. Done again only when the lock files have changed.
#
# Where npm or an index cannot be reached this says so and succeeds: the tests of those servers then skip, each with its
# reason (or fail, under REQUIRE=all).
set -uo pipefail
cd "$(dirname "$0")/.."

LOCKS=tests/mcp/servers
PLACE=.mcp-servers
PYTHON=${PYTHON:-.venv/bin/python}
mkdir -p $PLACE

# once NAME LOCK-FILE... -- COMMAND...: runs the command in a fresh folder of that name, unless it was done before.
once() {
    local name=$1 locks=() stamp want
    shift
    while [ "$1" != -- ]; do
        locks+=("$LOCKS/$1")
        shift
    done
    shift
    stamp=$PLACE/$name/.installed
    want=$(cat "${locks[@]}" "$0" | cksum)
    [ "$(cat "$stamp" 2>/dev/null)" != "$want" ] || return 0
    rm -rf "${PLACE:?}/$name"
    mkdir -p "$PLACE/$name"
    echo "mcp servers: installing $name"
    if "$@" "$PLACE/$name" >"$PLACE/$name.log" 2>&1; then
        echo "$want" >"$stamp"
    else
        echo "mcp servers: $name cannot be installed ($(tail -n 1 "$PLACE/$name.log")); their tests will skip" >&2
    fi
}

from_npm() {
    command -v npm >/dev/null 2>&1 || { echo "npm is not installed"; return 1; }
    cp $LOCKS/package.json $LOCKS/package-lock.json "$1" &&
        timeout 300 npm ci --prefix "$1" --no-audit --no-fund --ignore-scripts
}

from_pypi() {
    "$PYTHON" -m venv "$2" &&
        timeout 300 "$2/bin/python" -m pip install --quiet --disable-pip-version-check -r "$LOCKS/$1"
}

once node package.json package-lock.json -- from_npm &
once python requirements.txt -- from_pypi requirements.txt &
once python-mcp1 requirements-mcp1.txt -- from_pypi requirements-mcp1.txt &
wait
