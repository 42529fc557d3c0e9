#!/usr/bin/env bash
# Runs the tests of third-party libraries, each in its own virtual environment: they cannot all be installed together.
#
# usage: scripts/integrations.sh [--require=all] [LIBRARY ...]       (make test-integrations LIBS="trl verl")
#
#   PROCESSES=2        environments tested in parallel    PYTHON=.venv/bin/python   interpreter that creates them
#   TORCH=cpu|default  source of torch: scripts/torch_index.sh
#
# tests/integrations/requirements/LIBRARY.txt pins every package of .integrations/LIBRARY; the environment is recreated
# only if that file, pyproject.toml or this script has changed. A file LIBRARY+OTHER.txt creates one environment for
# both, if their requirements are compatible. rllm-gym itself is installed from this checkout with the extras of those
# names, so that an extra that excludes the tested version fails here. The tests of a library are
# tests/integrations/test_LIBRARY.py.
#
# If a library cannot be installed, the script prints that its tests did not run; with --require=all that is a failure.
set -uo pipefail
cd "$(dirname "$0")/.."

FOLDER=tests/integrations
ENVIRONMENTS=.integrations
PYTHON=${PYTHON:-.venv/bin/python}
INSTALL_SECONDS=900
TEST_SECONDS=600

log() {
    echo "integrations: $*"
}

# Prints the environments for these libraries, one per line; all environments without arguments.
environments_of() {
    local library file found
    if [ $# -eq 0 ]; then
        basename -s .txt $FOLDER/requirements/*.txt
        return
    fi
    for library in "$@"; do
        found=
        for file in $FOLDER/requirements/*.txt; do
            file=$(basename -s .txt "$file")
            case "+$file+" in *"+$library+"*) found=$file ;; esac
        done
        [ -n "$found" ] || {
            log "unknown library $library; known: $(basename -s .txt $FOLDER/requirements/*.txt | tr '+\n' '  ')" >&2
            return 1
        }
        echo "$found"
    done | sort -u
}

# make_environment NAME: creates the environment unless it is up to date.
make_environment() {
    local venv=$ENVIRONMENTS/$1 requirements=$FOLDER/requirements/$1.txt extras=${1//+/,} want index began=$SECONDS
    extras=${extras//_/-}  # pip does not find an extra by another spelling
    want=$(cat "$requirements" pyproject.toml scripts/integrations.sh | cksum)
    [ "$(cat "$venv/.installed" 2>/dev/null)" != "$want" ] || return 0
    log "$1: installing"
    rm -rf "$venv"
    index=$(scripts/torch_index.sh "$PYTHON") || return 1
    "$PYTHON" -m venv "$venv" &&
        timeout $INSTALL_SECONDS "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
            $index -r "$requirements" --editable ".[$extras]" || return 1
    if grep -q 'does not provide the extra' "$ENVIRONMENTS/$1.log"; then
        echo "rllm-gym does not provide the extra $extras" >&2
        return 1
    fi
    echo "$want" >"$venv/.installed"
    log "$1: installed in $((SECONDS - began)) s"
}

# Creates one environment and runs the tests of its selected libraries in it.
test_environment() {
    local name=$1 library log began failed=0 libraries
    shift
    exec 9>"$ENVIRONMENTS/$name.lock"
    # Concurrent runs must not create the same environment. Without flock, the user has to avoid that.
    ! command -v flock >/dev/null 2>&1 || flock 9
    log=$ENVIRONMENTS/$name.log
    if ! make_environment "$name" 2>"$log"; then
        log "$name: CANNOT BE INSTALLED (log: $log): $(grep -v '^WARNING' "$log" | tail -n 5)" >&2
        [ "$REQUIRE" != all ] || return 1
        log "$name: its tests did not run" >&2
        return 0
    fi
    IFS=+ read -ra libraries <<<"$name"
    for library in "${libraries[@]}"; do
        case " $* " in "  " | *" $library "*) ;; *) continue ;; esac
        log "$library: testing"
        log=$ENVIRONMENTS/$library.log began=$SECONDS
        if timeout $TEST_SECONDS "$ENVIRONMENTS/$name/bin/python" -m pytest "$FOLDER/test_$library.py" \
            -m 'not long' -q --tb=short --durations=3 ${REQUIRE:+--require=$REQUIRE} >"$log" 2>&1 9>&-; then
            log "$library: $(tail -n 1 "$log")"
        else
            failed=1
            cat "$log"
            log "$library: FAILED after $((SECONDS - began)) s (see above; log: $log)"
        fi
    done
    return $failed
}

REQUIRE=${REQUIRE:-}
case ${1:-} in
--require=*)
    REQUIRE=${1#--require=}
    shift
    ;;
esac
export REQUIRE

if [ "${1:-}" = --environment ]; then # called below for each environment
    shift
    test_environment "$@"
    exit
fi

mkdir -p $ENVIRONMENTS
environments=$(environments_of "$@") || exit 2
if printf '%s\n' "$environments" | xargs -P "${PROCESSES:-2}" -I NAME "$0" --environment NAME "$@"; then
    log "passed: $(echo $environments)"
else
    log "FAILED (see above)" >&2
    exit 1
fi
