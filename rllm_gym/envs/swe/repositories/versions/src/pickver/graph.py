"""In which order packages are installed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pickver.errors import PickverError


class CycleError(PickverError):
    """Packages need each other in a circle. ``cycle`` begins and ends with the same one."""

    def __init__(self, cycle: list[str]) -> None:
        super().__init__(" needs ".join(cycle))
        self.cycle = cycle


def install_order(needs: Mapping[str, Iterable[str]]) -> list[str]:
    """Every package after all that it needs; alphabetical where there is a choice.

    Args:
        needs: The packages each package needs. Those that are only needed count too.

    Raises:
        CycleError: There is no such order.
    """
    waiting = {package: set(needed) for package, needed in needs.items()}
    for needed in list(waiting.values()):
        for package in needed:
            waiting.setdefault(package, set())
    order: list[str] = []
    while waiting:
        ready = min((package for package, needed in waiting.items() if not needed), default=None)
        if ready is None:
            raise CycleError(_find_cycle(waiting))
        order.append(ready)
        del waiting[ready]
        for needed in waiting.values():
            needed.discard(ready)
    return order


def _find_cycle(needs: Mapping[str, set[str]]) -> list[str]:
    """Follow the needs until a package comes up again. Every package here needs another one."""
    path = [min(needs)]
    while path[-1] not in path[:-1]:
        path.append(min(needs[path[-1]]))
    return path[path.index(path[-1]) :]


def dependents(needs: Mapping[str, Iterable[str]], package: str) -> set[str]:
    """Every package that needs this one, also through others."""
    found: set[str] = set()
    waiting = [package]
    while waiting:
        current = waiting.pop()
        for other, needed in needs.items():
            if current in needed and other not in found:
                found.add(other)
                waiting.append(other)
    return found
