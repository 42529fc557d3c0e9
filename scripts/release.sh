#!/usr/bin/env bash
# Builds the source distribution, and from it the wheel, and checks the wheel in an empty environment of each Python.
#
#   PYTHONS="python3.11 python3.12 python3.13"   those that are not found are reported
#   TAG=1    also create the tag of the version: the changelog must have its date, nothing may be uncommitted, and no
#            Python may be missing. Nothing is pushed or published.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHONS=${PYTHONS:-python3.11 python3.12 python3.13}
BUILD_PYTHON=${BUILD_PYTHON:-.venv/bin/python}

fail() {
    printf 'release: %s\n' "$*" >&2
    exit 1
}

version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' rllm_gym/version.py)
heading=$(grep -m 1 '^## ' CHANGELOG.md)
case "$heading" in
    "## $version, unreleased" | "## $version, "20[0-9][0-9]-[0-9][0-9]-[0-9][0-9]) ;;
    *) fail "the first heading of CHANGELOG.md is '$heading', but rllm_gym/version.py has $version" ;;
esac
if [ "${TAG:-}" = 1 ]; then
    case "$heading" in *unreleased) fail "CHANGELOG.md calls $version unreleased: write the date of the release" ;; esac
    [ -z "$(git status --porcelain)" ] || fail "there are uncommitted changes: commit them, then run the tests again"
    ! git rev-parse -q --verify "refs/tags/v$version" >/dev/null || fail "the tag v$version exists: raise the version"
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
rm -rf dist
"$BUILD_PYTHON" -m build --no-isolation --outdir dist . >"$scratch/build.log" 2>&1 || {
    cat "$scratch/build.log" >&2
    fail "the build failed; make setup installs what it needs"
}
wheel=$(echo "$PWD"/dist/rllm_gym-"$version"-*.whl)
[ -f "$wheel" ] || fail "dist has no wheel of $version: $(ls dist)"

# Runs outside of the checkout, as a user would.
check() {
    local python=$1 venv=$2
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$constraints" "$wheel"
    cd "$scratch"
    "$venv/bin/python" -c "import gymnasium, rllm_gym; gymnasium.make('rllm/FrozenLake-v0').reset(seed=0)"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$constraints" "${wheel}[cli]"
    printf 'right\ndown\n' >replies.txt
    [ "$("$venv/bin/rllm-gym" --version)" = "rllm-gym $version" ]
    "$venv/bin/rllm-gym" list >/dev/null
    "$venv/bin/rllm-gym" play rllm/TicTacToe-v0 --seed 0 <replies.txt >/dev/null
    "$venv/bin/rllm-gym" eval rllm/FrozenLake-v0 rllm/Math-v0 --model.path scripted:replies.txt --limit 4 --output "$venv/out"
    "$venv/bin/rllm-gym" report "$venv/out"
    "$venv/bin/python" -W error::SyntaxWarning -m compileall -q "$venv"/lib/python3*/site-packages/{rllm_gym,trainers}
}

constraints=$PWD/constraints.txt missing=
for python in $PYTHONS; do
    "$python" -c 'import venv, ensurepip' 2>/dev/null || {
        missing="$missing $python"
        continue
    }
    # Not `( … ) || …`: there bash ignores set -e, and only the last command of the check would count.
    set +e
    (set -e; check "$python" "$scratch/${python##*/}") >"$scratch/check.log" 2>&1
    status=$?
    set -e
    if [ "$status" != 0 ]; then
        cat "$scratch/check.log" >&2
        fail "the wheel does not work with $("$python" --version)"
    fi
    echo "release: the wheel works with $("$python" --version)"
done
[ -z "$missing" ] || echo "release: not checked, because they were not found:$missing"
(cd dist && sha256sum ./*)
if [ "${TAG:-}" = 1 ]; then
    [ -z "$missing" ] || fail "no tag: the wheel must be checked with$missing"
    git tag -a "v$version" -m "rllm-gym $version"
    echo "release: created the tag v$version; push it with: git push origin v$version"
fi
