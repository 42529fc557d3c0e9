"""A training run: its folder, checkpoints, logs and processes.

:mod:`trainers.run.training_run` has the ``TrainingRun`` that combines them.
"""
