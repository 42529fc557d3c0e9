#!/usr/bin/env bash
# Runs the tests of third-party libraries, each in a virtual environment of its own: they cannot all be installed together.
#
# usage: scripts/integrations.sh [--require=all] [LIBRARY ...]       (make test-integrations LIBS="trl verl")
#
#   PROCESSES=2        environments at work at a time     PYTHON=.venv/bin/python   what makes them
#   TORCH=cpu|default  where torch comes from: scripts/torch_index.sh
#
# tests/integrations/requirements/LIBRARY.txt names every package of .integrations/LIBRARY at one version; the environment
# is made again only when that file, pyproject.toml or this script has changed. A file LIBRARY+OTHER.txt makes one
# environment for both, where their requirements allow it. rllm-gym itself is installed from this checkout with the extras
# of those names, so that an extra which does not admit the tested version fails here. The tests of a library are
# tests/integrations/test_LIBRARY.py.
#
# Where a library cannot be installed this says so, and that its tests did not run; under --require=all that is a failure.
set -uo pipefail
cd "$(dirname "$0")/.."

FOLDER=tests/integrations
PLACE=.integrations
PYTHON=${PYTHON:-.venv/bin/python}
INSTALL_SECONDS=900
TEST_SECONDS=600

say() {
    echo "integrations: $*"
}

# The environments for these libraries (all of them, where none is named), one a line.
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
            say "there is no library $library; there are: $(basename -s .txt $FOLDER/requirements/*.txt | tr '+\n' '  ')" >&2
            return 1
        }
        echo "$found"
    done | sort -u
}

# make_environment NAME: does nothing where it is up to date.
make_environment() {
    local venv=$PLACE/$1 requirements=$FOLDER/requirements/$1.txt want index began=$SECONDS
    want=$(cat "$requirements" pyproject.toml scripts/integrations.sh | cksum)
    [ "$(cat "$venv/.installed" 2>/dev/null)" != "$want" ] || return 0
    say "$1: installing"
    rm -rf "$venv"
    index=$(scripts/torch_index.sh "$PYTHON") || return 1
    "$PYTHON" -m venv "$venv" &&
        timeout $INSTALL_SECONDS "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
            $index -r "$requirements" --editable ".[${1//+/,}]" || return 1
    ! grep 'does not provide the extra' "$PLACE/$1.log" >&2 || return 1
    echo "$want" >"$venv/.installed"
    say "$1: installed in $((SECONDS - began)) s"
}

# Makes one environment and runs in it the tests of those of its libraries that are wanted.
one_environment() {
    local name=$1 library log began failed=0 libraries
    shift
    exec 9>"$PLACE/$name.lock"
    # Two runs at a time must not make the same environment; where there is no flock they are the user's care.
    ! command -v flock >/dev/null 2>&1 || flock 9
    log=$PLACE/$name.log
    if ! make_environment "$name" 2>"$log"; then
        say "$name: CANNOT BE INSTALLED (whole log: $log): $(grep -v '^WARNING' "$log" | tail -n 5)" >&2
        [ "$REQUIRE" != all ] || return 1
        say "$name: its tests did not run" >&2
        return 0
    fi
    IFS=+ read -ra libraries <<<"$name"
    for library in "${libraries[@]}"; do
        case " $* " in "  " | *" $library "*) ;; *) continue ;; esac
        say "$library: testing"
        log=$PLACE/$library.log began=$SECONDS
        if timeout $TEST_SECONDS "$PLACE/$name/bin/python" -m pytest "$FOLDER/test_$library.py" \
            -m 'not long' -q --tb=short --durations=3 ${REQUIRE:+--require=$REQUIRE} >"$log" 2>&1 9>&-; then
            say "$library: $(tail -n 1 "$log")"
        else
            failed=1
            cat "$log"
            say "$library: FAILED after $((SECONDS - began)) s (above; whole log: $log)"
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

if [ "${1:-}" = --environment ]; then # this script again, for one of those below
    shift
    one_environment "$@"
    exit
fi

mkdir -p $PLACE
environments=$(environments_of "$@") || exit 2
if printf '%s\n' "$environments" | xargs -P "${PROCESSES:-2}" -I NAME "$0" --environment NAME "$@"; then
    say "passed: $(echo $environments)"
else
    say "FAILED (see above)" >&2
    exit 1
fi
