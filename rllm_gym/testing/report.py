"""The result of a check as data, with a readable text form."""

from __future__ import annotations

from dataclasses import dataclass, field


class ContractViolation(AssertionError):
    """Raised if an environment violates the contract. The message is the report."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation of the contract.

    Attributes:
        check: Name of the check.
        message: What was expected and what was found.
    """

    check: str
    message: str


@dataclass(slots=True)
class Report:
    """The result of :func:`check_text_env`.

    Attributes:
        subject: Name of the environment.
        passed: Names of the checks without findings.
        findings: The violations.
        skipped: The reason why a check could not be run, by name of the check.
        warnings: Warnings of Gymnasium's checker; they do not fail the report.
    """

    subject: str
    passed: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not self.findings

    def raise_for_failures(self) -> Report:
        """Return the report if there are no findings.

        Raises:
            ContractViolation: There are findings.
        """
        if not self.ok:
            raise ContractViolation(str(self))
        return self

    def __str__(self) -> str:
        failed = {finding.check for finding in self.findings}
        lines = [
            f"{self.subject}: {'fulfils' if self.ok else 'violates'} the contract "
            f"({len(self.passed)} checks passed, {len(failed)} failed, {len(self.skipped)} skipped)"
        ]
        lines += [f"  FAIL  {finding.check}: {finding.message}" for finding in self.findings]
        lines += [f"  warn  {warning}" for warning in self.warnings]
        lines += [f"  skip  {check}: {reason}" for check, reason in self.skipped.items()]
        lines += [f"  ok    {', '.join(self.passed)}"] if self.passed else []
        return "\n".join(lines)
