"""Did a change to a repository make its hidden tests pass? Where the tree comes from lives with the environment."""

from rllm_gym.grading.swe.verdict import RepositoryTests, RepositoryVerdict

__all__ = ["RepositoryTests", "RepositoryVerdict"]
