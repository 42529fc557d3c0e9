"""From model text to an action: one grammar a file, never ``eval``. Rewards and chat templates live elsewhere."""
