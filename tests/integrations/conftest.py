"""Ray settings for a machine that is busy with other tests: fewer resources and shorter waits than its defaults."""

import os

os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("RAY_agent_register_timeout_ms", "120000")
