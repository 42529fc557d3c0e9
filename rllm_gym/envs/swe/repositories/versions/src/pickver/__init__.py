"""Semantic versions, ranges of them, and a resolver."""

from pickver.errors import IndexFormatError, NoSolution, RangeError, VersionError
from pickver.graph import CycleError, install_order
from pickver.index import Index
from pickver.lockfile import read_lock, write_lock
from pickver.ranges import Range, parse_range
from pickver.requirement import Requirement, parse_requirement
from pickver.resolver import resolve
from pickver.version import Version, parse_version

__all__ = [
    "CycleError",
    "Index",
    "IndexFormatError",
    "NoSolution",
    "Range",
    "RangeError",
    "Requirement",
    "Version",
    "VersionError",
    "install_order",
    "parse_range",
    "parse_requirement",
    "parse_version",
    "read_lock",
    "resolve",
    "write_lock",
]
