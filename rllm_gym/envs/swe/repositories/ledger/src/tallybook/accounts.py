"""Names of accounts: parts joined by colons, the most general one first."""

from __future__ import annotations

SEPARATOR = ":"


def depth(account: str) -> int:
    """How many parts the name has."""
    return account.count(SEPARATOR) + 1


def parent(account: str) -> str | None:
    """The account above this one, ``None`` at the top."""
    head, separator, _ = account.rpartition(SEPARATOR)
    return head if separator else None


def ancestors(account: str) -> list[str]:
    """All accounts above this one, the nearest first."""
    found = []
    above = parent(account)
    while above is not None:
        found.append(above)
        above = parent(above)
    return found


def is_within(account: str, root: str) -> bool:
    """Whether ``account`` is ``root`` or lies under it. ``assets:cashbox`` is not within ``assets:cash``."""
    return account == root or account.startswith(root + SEPARATOR)


def shorten(account: str, width: int) -> str:
    """Fit a name into ``width`` characters: parts lose their ends from the left, the last part stays whole.

    A name that is too long even so is returned as short as it gets.
    """
    parts = account.split(SEPARATOR)
    for place in range(len(parts) - 1):
        if len(SEPARATOR.join(parts)) <= width:
            break
        excess = len(SEPARATOR.join(parts)) - width
        parts[place] = parts[place][: max(1, len(parts[place]) - excess)]
    return SEPARATOR.join(parts)
