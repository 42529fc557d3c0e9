"""Updates of the trained weights: the learner of one set of weights, the learners of several, and the optimizers."""

from trainers.learner.learner import MAX_BAD_STEPS, Learner, TrainingDiverged
from trainers.learner.learner_set import LearnerSet, merge_updates
from trainers.learner.update_stats import RoleStats, UpdateStats

__all__ = ["MAX_BAD_STEPS", "Learner", "LearnerSet", "RoleStats", "TrainingDiverged", "UpdateStats", "merge_updates"]
