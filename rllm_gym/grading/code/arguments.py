"""Do tests notice a program that ruins what they give it? Asked of tests that are passed by a program that changes it.

``assert f(values) == sorted(values)`` is passed by a program that empties ``values`` and returns nothing but an empty
list: what is expected is computed from what the program changed. ``sort_in_place(values)``, then ``assert values == [1,
2, 3]``, is not. The two look alike to whoever grades one program; they differ in which other programs they accept.
"""

from __future__ import annotations

_RUIN = """
ZERO, LEAVES = {zero}, {leaves}


def _ruin(value):
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, (tuple, list, set)) else []
    found = sum([_ruin(each) for each in inner])
    if isinstance(value, tuple) or (found and LEAVES):
        return found
    if ZERO and isinstance(value, (list, dict)):
        for key in range(len(value)) if isinstance(value, list) else list(value):
            value[key] = type(value[key])()
    elif hasattr(value, "clear"):
        value.clear()
    elif hasattr(value, "fill"):
        value.fill(0)
    else:
        return found
    return 1


class _Ruin:
    def __call__(self, *args, **kwargs):
        _ruin((*args, *kwargs.values()))
        return {result}

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self


{name} = _Ruin()
"""

_WAYS = ((False, False), (False, True), (True, True))
"""Empty all; empty what holds nothing that could be emptied; make every item there nothing, in its type."""

_RESULTS = ("None", "(args or (None,))[0]", "[]", "0", "''", "{}", "True", "False", "()", "set()")


def ruining_programs(entry_point: str) -> list[str]:
    """Programs that ruin every argument and return next to nothing, each in another way."""
    name = entry_point.partition(".")[0].removesuffix("()").strip()
    programs = []
    for zero, leaves in _WAYS:
        program = _RUIN.replace("{name}", name).replace("{zero}", str(zero)).replace("{leaves}", str(leaves))
        programs += [program.replace("{result}", result) for result in _RESULTS]
    return programs
