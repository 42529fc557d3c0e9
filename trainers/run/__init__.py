"""A training run and all it holds: its folder, checkpoints, logs, ranks; how it begins, goes on and ends."""
