"""Is an answer right? Mathematical equivalence; what is asked and how it is rewarded lives with the environments."""

from rllm_gym.grading.math.grade import MathVerdict, agrade_math, grade_math

__all__ = ["MathVerdict", "agrade_math", "grade_math"]
