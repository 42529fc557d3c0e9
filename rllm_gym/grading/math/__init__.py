"""Mathematical equivalence: decided by an exact parser first, and by math-verify in killable workers last.

math-verify could decide everything. It would make an episode without a model ten times as expensive
(``benchmarks/results/grading.md``), with no better verdicts.
"""
