"""The program that a reply submits: fences as models write them, and feedback if there is none."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsing.checks import assert_all_equal, assert_all_refused, assert_linear_time

from rllm_gym.core import InvalidAction
from rllm_gym.parsing.program import MAX_PROGRAM_CHARS, program_of

F = "```"


def test_the_program_is_the_last_python_block():
    cases = [
        (f"{F}python\nprint(1)\n{F}", "print(1)\n"),
        (f"text\n{F}py\nprint(1)\n{F}\nmore", "print(1)\n"),
        (f"{F}Python3\nprint(1)\n{F}", "print(1)\n"),
        (f"{F} python title=x.py\nprint(1)\n{F}", "print(1)\n"),
        (f"{F}{{.python}}\nprint(1)\n{F}", "print(1)\n"),
        (f"{F}python3.11\nprint(1)\n{F}", "print(1)\n"),
        (f"{F}\nprint(1)\n{F}", "print(1)\n"),
        (f"{F}code\nprint(1)\n{F}", "print(1)\n"),
        # the last of several, and output that follows is not a program
        (f"{F}python\nprint(1)\n{F}\nno:\n{F}python\nprint(2)\n{F}", "print(2)\n"),
        (f"{F}python\nprint(1)\n{F}\nIt prints\n{F}\n1\n{F}", "print(1)\n"),
        (f"{F}\n1\n{F}\n{F}py\nprint(1)\n{F}\n{F}bash\npython a.py\n{F}", "print(1)\n"),
        # other fences
        ("~~~python\nprint(1)\n~~~", "print(1)\n"),
        (f"{F}`python\nprint('''\n{F}\n''')\n{F}`", f"print('''\n{F}\n''')\n"),
        (f"{F}python\nprint(1)\n{F}`", "print(1)\n"),
        (f"1. So:\n   {F}python\n   if x:\n       print(1)\n   {F}", "if x:\n    print(1)\n"),
        (f"\t{F}python\n\tprint(1)\n\t{F}", "print(1)\n"),
        (f"{F}python\r\nprint(1)\r\n{F}\r\n", "print(1)\r\n"),
        *(
            # a fence within a docstring is text
            (f"{F}python\n{program}{F}", program)
            for program in (
                f'def f():\n    """\n    {F}\n    f()\n    {F}\n    """\n',
                f'def f():\n    """\n    {F}python\n    f()\n    {F}\n    """\n',
            )
        ),
        # nested blocks: the program is the inner one
        (f"{F}markdown\n# Answer\n{F}python\nprint(1)\n{F}\n{F}", "print(1)\n"),
        (f"{F}`markdown\n# Answer\n{F}python\nprint(1)\n{F}\n{F}`", "print(1)\n"),
        (f"{F}python\nx = (\n\nAgain:\n{F}python\nprint(2)\n{F}", "print(2)\n"),
        # closed where the program ends
        (f"{F}python\nprint(1){F}", "print(1)\n"),
        (f"{F}python\nprint(1){F}\nDone.", "print(1)\n"),
        (f"{F}python\nprint(1)\n{F}\n{F}", "print(1)\n"),
        # only text after the thinking is used
        (f"<think>{F}python\nprint(0)\n{F}</think>\n{F}python\nprint(1)\n{F}", "print(1)\n"),
        (f"{F}x = 1{F} is a line\n{F}python\nprint(1)\n{F}", "print(1)\n"),
        # line separators of other languages are characters of the program
        (f"{F}python\nprint('\x0c\u2028\x85')\n{F}", "print('\x0c\u2028\x85')\n"),
    ]
    assert_all_equal(program_of, cases)


def test_without_a_program_the_model_gets_feedback():
    cases = [
        ("", "no fenced"),
        ("print(1)", "no fenced"),
        ("`print(1)`", "no fenced"),
        (f"{F}print(1){F}", "no fenced"),
        (f"{F}\n1\n{F}\n{F}\n2\n{F}", "of the 2 fenced blocks of the reply none is labelled"),
        (f"{F}python\n\n{F}", "is empty"),
        (f"{F}\n{F}", "is empty"),
        (f"{F}python\nprint(1)\n", "never closed"),
        (f"{F}python\nprint(1)\n{F}\nBetter:\n{F}python\nprint(2", "never closed"),
        (f"{F}\nprint(1)", "never closed"),
        ("<think>hm", "never closes it with </think>"),
        (f"<think>{F}python\nprint(1)\n{F}", "never closes it with </think>"),
        (f"<think>{F}python\nprint(1)\n{F}</think> So.", "no fenced"),
        (f"{F}python\nprint('\ud800')\n{F}", "lone surrogate"),
        (f"{F}python\n{'#' * MAX_PROGRAM_CHARS}\n{F}", "200001 characters"),
    ]
    assert_all_refused(program_of, cases)


lines = st.lists(
    st.one_of(
        st.sampled_from([F, f"{F}python", f"{F}`", "~~~", "~~~py", f"  {F}", f"    {F}", f"{F}text", f"x{F}"]),
        st.text(max_size=8),
    ),
    max_size=12,
)


@given(lines)
def test_any_text_gives_a_program_or_a_reason(parts):
    with contextlib.suppress(InvalidAction):
        program = program_of("\n".join(parts))
        assert program.strip()
        assert program.endswith("\n")


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="`~\r<"), min_size=1).filter(str.strip))
def test_a_program_without_fences_is_unchanged(program):
    assert program_of(f"Here:\n{F}python\n{program}\n{F}\n") == program + "\n"


def test_time_is_linear_in_the_length_of_a_reply():
    pieces = (f"{F}python\n", f"{F}\n", f"{F}markdown\n", "`")
    assert_linear_time(program_of, [("", piece, "") for piece in pieces])
    for piece in pieces:
        with pytest.raises(InvalidAction):
            program_of(piece * 1_000)
