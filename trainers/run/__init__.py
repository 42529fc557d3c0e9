"""A training run: its folder, checkpoints, logs and processes.

:mod:`trainers.run.setup` creates them, and :mod:`trainers.loop` combines them.
"""
