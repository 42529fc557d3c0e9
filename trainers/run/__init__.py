"""A training run: its folder, checkpoints, logs and ranks. :mod:`trainers.run.run` has the ``Run`` that combines
them.
"""
