"""A vLLM server that exits with its owner: ``python -m rllm_gym.samplers.vllm.server_main OWNER_PID ARGUMENTS``."""

from __future__ import annotations

import os
import runpy
import sys

from rllm_gym.runtime.child import die_with_parent

SERVER_PID = "RLLM_GYM_VLLM_SERVER_PID"
"""Environment variable with the process id of the server, which no other process of the server may outlive."""


def main() -> None:
    """Run ``vllm.entrypoints.openai.api_server`` in this process."""
    die_with_parent(int(sys.argv.pop(1)))
    os.environ[SERVER_PID] = str(os.getpid())
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
