"""A training run: its folder, checkpoints and logs.

:mod:`trainers.run.setup` creates them, and :mod:`trainers.loop` combines them.
"""
