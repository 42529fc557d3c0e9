#!/usr/bin/env bash
# Installs the system packages the tests need, where that is allowed: as root, or with a sudo that asks nothing.
#
# usage: scripts/system_packages.sh COMMAND:PACKAGE ...
#
# A package is needed where its command is not on the path. Where installing is not allowed or fails, this says what is
# missing and succeeds: the tests that need it then skip, each with its reason (or fail, under REQUIRE=all).
set -uo pipefail

missing=()
for pair in "$@"; do
    command -v "${pair%%:*}" >/dev/null 2>&1 || missing+=("${pair#*:}")
done
[ ${#missing[@]} -gt 0 ] || exit 0

sudo=()
if [ "$(id -u)" -ne 0 ]; then
    sudo=(sudo -n)
fi
if command -v apt-get >/dev/null 2>&1 && { [ ${#sudo[@]} -eq 0 ] || sudo -n true 2>/dev/null; }; then
    echo "system packages: installing ${missing[*]}"
    "${sudo[@]}" apt-get update -qq || true
    # One at a time: a package that this system does not have must not keep the others away.
    refused=()
    for package in "${missing[@]}"; do
        "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "$package" >/dev/null || refused+=("$package")
    done
    missing=("${refused[@]}")
    [ ${#missing[@]} -gt 0 ] || exit 0
fi
echo "system packages: not installed: ${missing[*]} (sudo apt-get install -y ${missing[*]}); their tests will skip" >&2
