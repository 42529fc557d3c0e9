"""What the checker found, as data that prints well."""

from __future__ import annotations

from dataclasses import dataclass, field


class ContractViolation(AssertionError):
    """An environment breaks the contract; the text is the report."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken promise.

    Attributes:
        check: Name of the check.
        message: What was expected and what was there.
    """

    check: str
    message: str


@dataclass(slots=True)
class Report:
    """What :func:`check_text_env` found.

    Attributes:
        subject: The environment, in words.
        passed: Names of the checks without findings.
        findings: The broken promises.
        skipped: Name of a check and why it could not be made.
        warnings: What Gymnasium's checker warned of; they do not fail the report.
    """

    subject: str
    passed: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """No promise is broken."""
        return not self.findings

    def raise_for_failures(self) -> Report:
        """The report itself if it is ok.

        Raises:
            ContractViolation: It is not.
        """
        if not self.ok:
            raise ContractViolation(str(self))
        return self

    def __str__(self) -> str:
        failed = {finding.check for finding in self.findings}
        lines = [
            f"{self.subject}: {'keeps' if self.ok else 'breaks'} the contract "
            f"({len(self.passed)} checks passed, {len(failed)} failed, {len(self.skipped)} skipped)"
        ]
        lines += [f"  FAIL  {finding.check}: {finding.message}" for finding in self.findings]
        lines += [f"  warn  {warning}" for warning in self.warnings]
        lines += [f"  skip  {check}: {reason}" for check, reason in self.skipped.items()]
        lines += [f"  ok    {', '.join(self.passed)}"] if self.passed else []
        return "\n".join(lines)
