"""``python -m rllm_gym``: the command line, also where the script ``rllm-gym`` is not installed."""

import sys

from rllm_gym.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
