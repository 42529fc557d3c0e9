"""One test over several values of an argument, where each is cheap."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any


def for_every(name: str, values: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the test with each of these values of an argument; a failure names the value.

    Below ``hypothesis.given``, each example is tried with all of them.
    """
    known = list(values)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        parameters = inspect.signature(test).parameters
        others = inspect.Signature([parameter for key, parameter in parameters.items() if key != name])

        def run(*args: Any, **kwargs: Any) -> None:
            values = others.bind(*args, **kwargs).arguments
            for value in known:
                try:
                    test(**values, **{name: value})
                except BaseException as error:
                    error.add_note(f"with {name}={value!r}")
                    raise

        run.__signature__ = others  # type: ignore[attr-defined]
        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        run.__qualname__, run.__annotations__ = test.__qualname__, test.__annotations__
        return run

    return decorate
