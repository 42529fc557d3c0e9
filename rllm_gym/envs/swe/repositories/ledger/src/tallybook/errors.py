"""What can be wrong with a journal."""


class TallybookError(Exception):
    """Base of every error of this package."""


class MoneyError(TallybookError, ValueError):
    """An amount cannot be read, or two amounts do not go together."""


class JournalError(TallybookError, ValueError):
    """A line of the journal cannot be read. ``line`` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


class BalanceError(JournalError):
    """The postings of a transaction do not add up to zero."""
