"""Ctrl-C at every instant of a call."""

from __future__ import annotations

import _thread
import dis
import functools
import gc
import signal
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

# CPython looks for signals after a call and at the end of an iteration. 3.11 has two instructions for a call, and may
# execute both at the first.
CHECKED = {"PRECALL" if "PRECALL" in dis.opmap else "CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD"}


@functools.cache
def instructions(code: CodeType) -> dict[int, str]:
    return {instruction.offset: instruction.opname for instruction in dis.get_instructions(code)}


def interrupt(number: int, call: Callable[..., object], *arguments: Any, **keywords: Any) -> bool:
    """Call a function, and press Ctrl-C at the ``number``-th instant at which CPython looks for it.

    Returns:
        Whether there is such an instant.
    """
    left = number

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        if event == "opcode" and instructions(frame.f_code)[frame.f_lasti] in CHECKED:
            left -= 1
            if left < 0:
                sys.settrace(None)
                # The iteration calls it without looking for signals afterwards, as a call from here would.
                for _ in map(_thread.interrupt_main, [signal.SIGINT]):
                    return None
        return trace

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # an exception in a finalizer is ignored
    try:
        sys.settrace(trace)
        call(*arguments, **keywords)
        sys.settrace(None)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
        gc.enable()
        signal.signal(signal.SIGINT, handler)
    return left < 0
