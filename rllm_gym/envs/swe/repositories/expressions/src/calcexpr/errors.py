"""What can go wrong with an expression."""


class ExpressionError(Exception):
    """Base of every error of this package."""


class ParseError(ExpressionError, ValueError):
    """The text is no expression. ``place`` is the offset of the first character that does not fit."""

    def __init__(self, message: str, place: int) -> None:
        super().__init__(f"{message} (at character {place + 1})")
        self.place = place


class EvaluationError(ExpressionError):
    """The expression has no value: an unknown name, a division by zero, values that do not go together."""
