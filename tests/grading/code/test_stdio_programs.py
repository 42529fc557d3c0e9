"""Programs that read standard input and write standard output, compared with the expected output."""

from __future__ import annotations

import asyncio

import pytest

from rllm_gym.core import TaskError
from rllm_gym.grading.code import CodeVerdict, StdioTest, StdioTests, grade_program, grade_program_sync, validate
from rllm_gym.sandbox import Ended, Limits, SandboxPool

LIMITS = Limits(cpu_s=10, wall_s=100, memory_mb=256)
SHORT_LIMITS = Limits(cpu_s=0.3, wall_s=8, memory_mb=256)
"""For programs that never end."""
DOUBLE = StdioTests(tuple(StdioTest(f"{number}\n", f"{2 * number}\n") for number in range(1, 7)), limits=LIMITS)


def graded(pool: SandboxPool, source: str, tests: StdioTests = DOUBLE, **options: bool) -> CodeVerdict:
    return asyncio.run(grade_program(pool, source, tests, **options))


RIGHT = [
    "print(int(input()) * 2)",
    "import sys\nsys.stdout.write(str(2 * int(sys.stdin.read())))\nsys.exit(0)",
    "import sys\nsys.stdout.buffer.write(b'%d' % (2 * int(sys.stdin.buffer.readline())))",
    "def main():\n    print(2 * int(open(0).read()))\nif __name__ == '__main__':\n    main()",
    "import sys\nprint('debug', file=sys.stderr)\nprint(2 * int(sys.stdin.readline()), end='  \\n\\n')",
]


def test_honest_programs_pass(pool: SandboxPool) -> None:
    for source in RIGHT:
        verdict = graded(pool, source)
        assert verdict.correct, (source, verdict)
        assert verdict.fraction == 1
        assert [item.name for item in verdict.outcomes] == ["1", "2", "3", "4", "5", "6"]


# Programs, and what ended them if they did not end by themselves.
WRONG = [
    ("print(2)", None),
    ("print(int(input()) * 2)\nraise SystemExit(1)", None),
    ("print(int(input()) * 2)\nimport os\nos._exit(3)", None),
    ("print(int(input()) * 2, flush=True)\nimport os\nos.abort()", Ended.SIGNALLED),
    ("print(int(input()) * 2, flush=True)\nwhile True: pass", Ended.CPU),
    ("import sys\nwhile True: sys.stdout.write('1\\n' * 100000)", Ended.OUTPUT),
    ("x = int(input())\nprint(2 * x)\nprint('\\n' * 300000)", None),
    ("import sys\nsys.stdout.buffer.write(b'\\xff')", None),
    ("class S(str):\n    def __eq__(s, o): return True\nprint(S('x'))", None),
    ("import glob\nprint(open(glob.glob('**/*out*', recursive=True)[0]).read())", None),
    ("", None),
]


def test_wrong_programs_fail(pool: SandboxPool) -> None:
    for source, ended in WRONG:
        limits = SHORT_LIMITS if ended is Ended.CPU else LIMITS
        verdict = graded(pool, source, StdioTests(DOUBLE.tests, limits=limits), stop_at_first_failure=True)
        assert not verdict.correct, source
        failed = next(item for item in verdict.outcomes if not item.passed)
        assert failed.ended == ended, source


def test_the_fraction_of_passed_tests(pool: SandboxPool) -> None:
    verdict = graded(pool, "x = int(input())\nprint(2 * x if x < 4 else 0)")
    assert verdict.fraction == 0.5
    assert [item.passed for item in verdict.outcomes] == [True] * 3 + [False] * 3


def test_expected_values_are_reported_only_when_asked(pool: SandboxPool) -> None:
    tests = StdioTests((StdioTest("5\n", "31337\n"),), limits=LIMITS)
    hidden = graded(pool, "print(1)", tests).outcomes[0].message
    assert "input:\n5" in hidden
    assert "got '1'" in hidden
    assert "31337" not in hidden
    assert "expected '31337'" in graded(pool, "print(1)", tests, show_expected=True).outcomes[0].message


def test_a_syntax_error_is_reported_and_the_program_is_run_once(pool: SandboxPool) -> None:
    verdict = graded(pool, "print(1\nprint(2)")
    assert "SyntaxError: '(' was never closed" in verdict.error
    assert "line 1" in verdict.error
    assert (verdict.correct, verdict.fraction, verdict.outcomes) == (False, 0, ())


def test_an_exception_is_reported(pool: SandboxPool) -> None:
    message = graded(pool, "print([][1])", stop_at_first_failure=True).outcomes[0].message
    assert "IndexError: list index out of range" in message


def test_numbers_within_a_tolerance(pool: SandboxPool) -> None:
    tests = StdioTests((StdioTest("", "0.3333\n"),), float_tolerance=1e-3, limits=LIMITS)
    assert graded(pool, "print(1 / 3)", tests).correct
    assert not graded(pool, "print(1 / 2)", tests).correct
    assert not graded(pool, "print('nan')", tests).correct


DIVISOR = """
def check(stdin, stdout, expected):
    number, divisor = int(stdin), int(stdout)
    return 1 < divisor < number and number % divisor == 0
"""
DIVISOR_SCRIPT = """
import sys
number, divisor = (int(open(sys.argv[at]).read()) for at in (1, 3))
print(1 if 1 < divisor < number and number % divisor == 0 else 0)
"""
DIVIDING = (StdioTest("30", "5"), StdioTest("49", "7"))
DIVIDES = "n = int(input())\nprint(next(k for k in range(2, n) if n % k == 0))"


@pytest.mark.parametrize("checker", [DIVISOR, DIVISOR_SCRIPT])
def test_a_checker_decides_where_several_outputs_are_right(pool: SandboxPool, checker: str) -> None:
    tests = StdioTests(DIVIDING, limits=LIMITS, checker=checker)
    assert graded(pool, DIVIDES, tests).correct
    for wrong in ("print(input())", "print('7 7')", "print()", "print(float(7))", "import os\nos.write(1, b'\\xff')"):
        verdict = graded(pool, wrong, tests)
        assert verdict.fraction == 0, wrong
        assert "wrong output" in verdict.outcomes[0].message
    # It is right, but did not end as it should.
    assert not graded(pool, DIVIDES + "\nraise SystemExit(1)", tests).correct


@pytest.mark.parametrize(
    ("checker", "reason"),
    [
        ("def check(stdin, stdout, expected):\n    return stdot == expected", "NameError"),
        ("def check(stdin, stdout, expected):\n    return len(stdout) > 99", "refuses the expected output"),
        ("import no_such_module\nprint(1)", "ModuleNotFoundError"),
        ("def check(:\n    pass", "SyntaxError"),
        ("def check(stdin, stdout, expected):\n    return False, 'wrong'", "must return True or False"),
        ("import os\nos._exit(3)", "exit code 3"),
    ],
)
def test_a_checker_that_no_program_can_satisfy_is_an_error_of_the_task(
    pool: SandboxPool, checker: str, reason: str
) -> None:
    tests = StdioTests(DIVIDING, limits=LIMITS, checker=checker)
    with pytest.raises(TaskError, match=reason):
        grade_program_sync(pool, DIVIDES, tests)


SEVEN = "def check(stdin, stdout, expected):\n    "


@pytest.mark.parametrize(
    ("checker", "outputs"),
    [
        (
            SEVEN + "import json\n    return json.loads(stdout) == 7",
            ["'['", "'[' * 200_000", "'nan'", "'7\\0'", "'1e400'"],
        ),
        (SEVEN + "import os\n    return stdout.strip() == '7' or os._exit(3)", ["8"]),
        (SEVEN + "x = [0] * int(stdout) * 10**7\n    return int(stdout) == 7", ["99", "9 * 10**5000"]),
        # What a script quotes from the output is no score.
        (
            "import sys\nout = open(sys.argv[3]).read()\nprint(1 if out.strip() == '7' else 'got ' + out)",
            ["1", "'x\\n1'"],
        ),
    ],
)
def test_an_output_neither_satisfies_a_checker_that_it_disturbs_nor_causes_a_fault(
    pool: SandboxPool, checker: str, outputs: list[str]
) -> None:
    tests = StdioTests((StdioTest("", "7"),), limits=LIMITS, checker=checker)
    assert graded(pool, "print(7)", tests).correct
    assert [output for output in outputs if graded(pool, f"print({output})", tests).correct] == []


def test_without_an_expected_output_a_checker_that_cannot_be_run_is_an_error_of_the_task(pool: SandboxPool) -> None:
    without = (StdioTest("", ""),)
    for checker in (
        "def check(stdin, stdout, expected):\n    return stdot == '7'",
        "def check(stdout):\n    return True",
        "import no_such_module\ndef check(stdin, stdout, expected):\n    return True",
        "1 / 0\ndef check(stdin, stdout, expected):\n    return True",
        "import no_such_module\nprint(1)",
    ):
        with pytest.raises(TaskError, match="cannot be run"):
            grade_program_sync(pool, "print(7)", StdioTests(without, limits=LIMITS, checker=checker))
    # An empty output is no answer: the checker may fail on it.
    for body in (
        "return int(stdout) == 7",
        "for line in stdout.splitlines():\n        last = line\n    return last == '7'",
    ):
        tests = StdioTests(without, limits=LIMITS, checker=SEVEN + body)
        assert graded(pool, "print(7)", tests).correct
        assert not graded(pool, "print('')" if "last" in body else "print('x')", tests).correct
        assert not graded(pool, "", tests).correct


def test_words_are_compared_where_lines_do_not_matter(pool: SandboxPool) -> None:
    tests = StdioTests((StdioTest("", "YES\n1 2\n3.5\nAb"),), limits=LIMITS, checker="tokens", float_tolerance=1e-3)
    assert graded(pool, "print('yes', 1, 2, 3.5001, 'Ab')", tests).correct
    for wrong in ("'yes', 1, 2, 3.5", "'no', 1, 2, 3.5, 'Ab'", "'yes', 1, 3, 3.5, 'Ab'", "'yes', 1, 2, 3.5, 'ab'"):
        assert not graded(pool, f"print({wrong})", tests).correct, wrong


def test_any_of_several_outputs_is_right(pool: SandboxPool) -> None:
    tests = StdioTests((StdioTest("", "1 2", also=("2 1",)),), limits=LIMITS)
    assert [graded(pool, f"print('{text}')", tests).correct for text in ("1 2", "2 1", "1 1")] == [True, True, False]


def test_standard_input_is_a_regular_file_where_the_task_asks_for_it(pool: SandboxPool) -> None:
    tests = StdioTests(DOUBLE.tests, limits=LIMITS, stdin_file=True)
    for source in (
        "import mmap\nprint(2 * int(mmap.mmap(0, 0, access=mmap.ACCESS_READ).readline()))",
        "import os\nprint(2 * int(os.read(0, os.fstat(0).st_size)))",
        "import sys\nsys.stdin.readline()\nsys.stdin.seek(0)\nprint(2 * int(input()))",
        *RIGHT,
    ):
        assert graded(pool, source, tests).correct, source
    error = graded(pool, "x = 1\nprint([][x])", tests).outcomes[0].message
    assert 'File "main.py", line 2' in error
    assert "SyntaxError: '(' was never closed" in graded(pool, "print(1\nprint(2)", tests).outcomes[0].message


def test_grading_works_without_an_event_loop_and_within_one(pool: SandboxPool) -> None:
    assert grade_program_sync(pool, "print(2 * int(input()))", DOUBLE).correct

    async def within() -> bool:
        return grade_program_sync(pool, "print(2 * int(input()))", DOUBLE).correct

    assert asyncio.run(within())


def test_a_task_whose_reference_fails_is_refused(pool: SandboxPool) -> None:
    assert asyncio.run(validate(pool, DOUBLE, "print(2 * int(input()))")) is None
    reason = asyncio.run(validate(pool, DOUBLE, "print(3)"))
    assert reason is not None
    assert "test 1" in reason
    assert "expected '2'" in reason


def test_a_task_without_tests_is_an_error() -> None:
    with pytest.raises(TaskError, match="without tests"):
        StdioTests(())
    with pytest.raises(TaskError, match="float_tolerance"):
        StdioTests((StdioTest("", ""),), float_tolerance=float("nan"))


def test_a_program_that_is_not_text_fails(pool: SandboxPool) -> None:
    assert not graded(pool, "print('\ud800')\x00", stop_at_first_failure=True).correct
    assert "at most" in graded(pool, "#" * 2_000_000).error
