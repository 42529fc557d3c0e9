#!/usr/bin/env bash
# Prints the pip option that selects the index for torch; nothing for the default index (a CUDA build on Linux).
#
# usage: scripts/torch_index.sh PYTHON
#
#   TORCH=cpu|default   default: cpu on Linux without an NVIDIA GPU if PyTorch's CPU index is reachable
set -euo pipefail

CPU_INDEX=https://download.pytorch.org/whl/cpu

# Three attempts: after a lost one, pip would install the CUDA build, which is ten times larger.
is_reachable() {
    "$1" - "$CPU_INDEX/torch/" 2>/dev/null <<'PROBE'
import sys, urllib.error, urllib.request
for attempt in range(3):
    try:
        urllib.request.urlopen(urllib.request.Request(sys.argv[1], method="HEAD"), timeout=10)
        sys.exit(0)
    except urllib.error.HTTPError:
        break
    except OSError:
        continue
sys.exit(1)
PROBE
}

case ${TORCH:-auto} in
cpu) echo "--extra-index-url $CPU_INDEX" ;;
default) ;;
auto)
    if [ "$(uname -s)" = Linux ] && [ ! -e /dev/nvidiactl ] && is_reachable "$1"; then
        echo "--extra-index-url $CPU_INDEX"
    fi
    ;;
*)
    echo "setup: TORCH=$TORCH must be cpu or default" >&2
    exit 1
    ;;
esac
