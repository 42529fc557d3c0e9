"""Do tests notice a program that ruins what they give it? Asked of tests that are passed by a program that changes it.

``assert f(values) == sorted(values)`` is passed by a program that empties ``values`` and returns nothing but an empty
list: what is expected is computed from what the program changed. ``sort_in_place(values)``, then ``assert values == [1,
2, 3]``, is not. The two look alike to whoever grades one program; they differ in which other programs they accept.
"""

from __future__ import annotations

_RUIN = """
def _ruin(values):
    for value in values:
        if isinstance(value, (tuple, list, set)):
            _ruin(value)
        elif isinstance(value, dict):
            _ruin(value.values())
        if hasattr(value, "clear"):
            value.clear()
        elif hasattr(value, "fill"):
            value.fill(0)


class _Ruin:
    def __call__(self, *args, **kwargs):
        _ruin(args)
        _ruin(kwargs.values())
        return {result}

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self


{name} = _Ruin()
"""

_RESULTS = ("None", "(args or (None,))[0]", "[]", "0", "''", "{}", "True", "False", "()", "set()")


def ruining_programs(entry_point: str) -> list[str]:
    """Programs that empty every argument and return next to nothing, each in another way."""
    name = entry_point.partition(".")[0].removesuffix("()").strip()
    return [_RUIN.replace("{name}", name).replace("{result}", result) for result in _RESULTS]
