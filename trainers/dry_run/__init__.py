"""``rllm-gym train --dry-run``: what a run would do and how much memory it would need, without loading weights."""

from trainers.dry_run.estimate import dry_run, fit_to_memory, report

__all__ = ["dry_run", "fit_to_memory", "report"]
