#!/usr/bin/env bash
# Prints pip's option for where torch comes from, or nothing for pip's own index alone (a CUDA build, on Linux).
#
# usage: scripts/torch_index.sh PYTHON
#
#   TORCH=cpu|default   default: cpu on Linux where there is no NVIDIA GPU and PyTorch's CPU index answers
set -euo pipefail

CPU_INDEX=https://download.pytorch.org/whl/cpu

answers() {
    "$1" - "$CPU_INDEX/torch/" 2>/dev/null <<'PROBE'
import sys, urllib.request
urllib.request.urlopen(urllib.request.Request(sys.argv[1], method="HEAD"), timeout=5)
PROBE
}

case ${TORCH:-auto} in
cpu) echo "--extra-index-url $CPU_INDEX" ;;
default) ;;
auto)
    if [ "$(uname -s)" = Linux ] && [ ! -e /dev/nvidiactl ] && answers "$1"; then
        echo "--extra-index-url $CPU_INDEX"
    fi
    ;;
*)
    echo "setup: TORCH=$TORCH is neither cpu nor default" >&2
    exit 1
    ;;
esac
