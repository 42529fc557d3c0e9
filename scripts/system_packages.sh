#!/usr/bin/env bash
# Installs the system packages that the tests need, as root or with passwordless sudo.
#
# usage: scripts/system_packages.sh COMMAND:PACKAGE ... LIBRARY.so.N:PACKAGE ...
#
# A package is installed if its command is not on the path, or its library not known to the loader. If installing is
# not permitted or fails, the script prints what is missing and exits with 0: the tests that need it are then skipped
# (or fail with REQUIRE=all).
set -uo pipefail

present() {
    case $1 in
    *.so.*) PATH=$PATH:/usr/sbin:/sbin ldconfig -p 2>/dev/null | grep -F "$1" >/dev/null ;;
    *) command -v "$1" >/dev/null 2>&1 ;;
    esac
}

missing=()
for pair in "$@"; do
    present "${pair%%:*}" || missing+=("${pair#*:}")
done
[ ${#missing[@]} -gt 0 ] || exit 0

sudo=()
if [ "$(id -u)" -ne 0 ]; then
    sudo=(sudo -n)
fi
if command -v apt-get >/dev/null 2>&1 && { [ ${#sudo[@]} -eq 0 ] || sudo -n true 2>/dev/null; }; then
    echo "system packages: installing ${missing[*]}"
    "${sudo[@]}" apt-get update -qq || true
    # One at a time, so that a package that is not available does not prevent the others from being installed.
    failed=()
    for package in "${missing[@]}"; do
        "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "$package" >/dev/null || failed+=("$package")
    done
    missing=("${failed[@]}")
    [ ${#missing[@]} -gt 0 ] || exit 0
fi
echo "system packages: not installed: ${missing[*]} (sudo apt-get install -y ${missing[*]}); tests will be skipped" >&2
