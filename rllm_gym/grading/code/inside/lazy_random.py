"""Random numbers of a side, which most runs need none of."""

from __future__ import annotations

from typing import Any


class LazyRandom:
    """A ``random.Random`` that is made when it is used: importing its module takes as long as a short program."""

    def __getattr__(self, name: str) -> Any:
        import random

        vars(self).update({key: getattr(generator, key) for generator in (random.Random(),) for key in _METHODS})
        return vars(self)[name]


_METHODS = ("choice", "random", "randrange", "seed", "shuffle")
