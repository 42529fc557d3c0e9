"""Ray on a machine that is busy with other tests: its defaults give way to them, and give up early."""

import os

os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("RAY_agent_register_timeout_ms", "120000")
