"""Grading of programs. They run in a sandbox; correctness is decided in a process that they cannot access.

:func:`grade_program` is the entry point (``grade.py``). There are two kinds of tests (``verdict.py``):

- :class:`StdioTests` (``stdio.py``): the program runs once per test; its output is compared here (``compare.py``).
- :class:`FunctionTests` (``function.py``): hidden test code calls functions and classes of the program. In one process
  the program could read or replace that code, so two programs run, each in a sandbox of its own:

      program side                     trainer                       test side
      the program, as `solution`  <->  relay.py: forwards  <->  the tests and expected values

The modules in ``inside/`` are sent to both sides as source. ``peer.py`` is one end of the connection: a side sends a
request (call, attribute, operator) and serves the other's requests until its answer arrives, so calls nest both ways.
A value crosses by one of three ways (``codec.py``): plain immutable data is copied; a mutable container has a copy on
each side, kept equal (``shared_containers.py``); any other object stays where it is, and the other side gets a proxy
that forwards operations (``proxies.py``). The program is never asked whether an object equals an expected value: the
test side decides that itself (``guard.py``).

The verdict is what the test side reports. The relay does not decode values; it requires that each side sends only when
it is its turn. A program that passes is graded again where it could have passed by changing the test's arguments or by
claiming equality (``argument_mutation.py``).
"""

from rllm_gym.grading.code.grade import grade_program, grade_program_sync, validate
from rllm_gym.grading.code.ungradable import ungradable_reason
from rllm_gym.grading.code.verdict import CodeVerdict, FunctionTests, StdioTest, StdioTests, TestOutcome, TestStyle

__all__ = [
    "CodeVerdict",
    "FunctionTests",
    "StdioTest",
    "StdioTests",
    "TestOutcome",
    "TestStyle",
    "grade_program",
    "grade_program_sync",
    "ungradable_reason",
    "validate",
]
