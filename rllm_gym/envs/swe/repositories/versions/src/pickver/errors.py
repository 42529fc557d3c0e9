"""What can go wrong."""


class PickverError(Exception):
    """Base of every error of this package."""


class VersionError(PickverError, ValueError):
    """A text is no version."""


class RangeError(PickverError, ValueError):
    """A text is no range or no requirement."""


class IndexFormatError(PickverError, ValueError):
    """A list of packages or a lock file cannot be read. ``line`` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(f"line {line}: {message}")
        self.line = line


class NoSolution(PickverError):
    """No choice of versions fits. ``package`` is one that could not be chosen."""

    def __init__(self, message: str, package: str) -> None:
        super().__init__(message)
        self.package = package
