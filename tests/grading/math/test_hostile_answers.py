r"""Answers built to hang, crash, execute code or mislead cost at most their deadline and affect no other answer."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import os
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllm_gym.core import EnvironmentFault
from rllm_gym.grading import agrade_math, grade_math
from rllm_gym.grading.math import grade
from rllm_gym.grading.math.normalize import normalize, normalize_spelling
from rllm_gym.parsing.boxed import last_boxed
from rllm_gym.runtime import MemoryExceeded
from tests.waiting import is_alive, until

HANGS = r"\boxed{\int \frac{\sin(x^7+x^5)}{x^{11}+\ln(x)} dx}"
"""SymPy needs minutes for this integral."""
INTEGRAL = r"\int_0^1 x dx"
SHORT_TIMEOUT = 0.3
"""Seconds for wrong answers, which may also time out."""
PATIENT = 120.0
"""Seconds that suffice for correct answers even on a machine that stalls."""

HOSTILE = {
    "Python tower": "9**9**9**9",
    "tower": "9^{9^{9^9}}",
    "taller tower": "9^{9^{9^{9^{9^{9}}}}}",
    "chained power": "^".join(["9"] * 20),
    "factorial tower": "((10!)!)!",
    "factorials": "5" + "!" * 900,
    "factorial": "100000000!",
    "factorial of a large number": "9" * 1900 + "!",
    "power": "2^{99999999999}",
    "exponent of an exponent": "1e99999999",
    "gamma": r"(10^{11})!",
    "binomial": r"\binom{1000000000000}{500000000000}",
    "sine": r"\sin(10^{10^{10}})",
    "a megabyte of fractions": r"\frac{1}{" * 120_000,
    "a megabyte of sums": "x+" * 500_000,
    "a megabyte of roots": r"\sqrt{2}+" * 120_000,
    "a megabyte of digits": "9" * 1_000_000,
    "a hundred thousand braces": "{" * 100_000 + "}" * 100_000,
    "open brackets": "(" * 100_000,
    "nested brackets": "(" * 900 + "5" + ")" * 900,
    "nested braces": "{" * 900 + "5" + "}" * 900,
    "nested roots": r"\sqrt{" * 250 + "2" + "}" * 250,
    "nested functions": r"\sin " * 400 + "x",
    "a long product": "x" * 1900,
    "a large matrix": r"\begin{pmatrix}" + (r"1&" * 400 + r"1\\") * 400 + r"\end{pmatrix}",
    "a wide matrix": r"\begin{pmatrix}" + r"1&" * 600 + r"1\end{pmatrix}",
    "a hundred thousand digits": "9" * 100_000,
    "digits in a base": "9" * 900 + "_{35}",
    "repeating digits": r"0.\overline{" + "3" * 900 + "}",
    "a large sum": r"\sum_{i=1}^{99999999} i",
    "a sum up to a tower": r"\sum_{i=1}^{10^{10^{10}}} \frac{1}{i^2}",
    "a large product": r"\prod_{i=1}^{9999999} i",
    "an integral": r"\int_0^1 e^{e^{x^2}} dx",
    "signs of both kinds": r"\pm 1 " * 30,
    "many signs of both kinds": r"1\pm 2" * 100,
    "a long list": ",".join(map(str, range(400))),
    "a long list of expressions": ",".join(f"x^{i}+y" for i in range(200)),
    "a chain of relations": "<".join(["x"] * 500),
    "a chain of equations": "=".join(["x"] * 500),
    "a long union": r"\cup".join(f"({i},{i + 1})" for i in range(0, 200, 2)),
    "a large expansion": "(a+b+c+d+e+f)^{50}",
    "bars": "|" * 1000,
    "colons": ":".join(["1"] * 900),
    "backslashes": "\\" * 1000,
    "underscores": "_" * 900,
    "percent signs": "5" + "%" * 900,
    "emoji": "🙂" * 500,
    "a null byte": "5\x00",
    "a lone surrogate": "5\ud800",
    "right to left": "\u202e24",
    "Arabic digits": "\u0664\u0662",
    "mathematical digits": "\U0001d7d2\U0001d7d0",
    "Cyrillic": "\u0425",
    "an import": "__import__('os').system('touch {marker}')",
    "an import in text": r"\text{{__import__('os').system('touch {marker}')}}",
    "an exec": "exec(open('{marker}','w'))",
    "a lambda": "(lambda: 42)()",
    "all candidates": "40 or 41 or 42 or 43",
    "more than the answer": "42 or not",
    "a denial": r"\text{not } 42",
    "a sentence around it": r"\text{the answer is not } 42",
    "anything": "x",
    "everything": r"\mathbb{R}",
    "what is asked for": "the answer",
}


@pytest.fixture(scope="module", autouse=True)
def warm():
    assert grade_math(r"\boxed{\sum_{i=1}^3 i}", r"\sum_{k=1}^3 k", timeout=PATIENT).correct
    assert grade_math(r"\boxed{\sqrt{8}}", r"2\sqrt{2}", timeout=PATIENT).correct


@pytest.mark.parametrize(
    ("gold", "timeout"),
    [
        ("42", SHORT_TIMEOUT),
        (r"\sqrt{2}+x", SHORT_TIMEOUT),
        (r"\sum_{k=1}^{3} k", SHORT_TIMEOUT),
        pytest.param(r"\sum_{k=1}^{3} k", 5.0, marks=pytest.mark.long),
        pytest.param(r"\sqrt{2}+x", 5.0, marks=pytest.mark.long),
    ],
)
def test_hostile_answers_are_wrong_within_the_deadline_and_execute_nothing(gold, timeout, tmp_path):
    marker = tmp_path / "executed"
    for name, template in HOSTILE.items():
        answer = (
            template.replace("{marker}", str(marker)).replace("{{", "{").replace("}}", "}")
            if "marker" in template
            else template
        )
        for response, extract in ((f"\\boxed{{{answer}}}", "boxed"), (answer, "any")):
            if extract == "any" and ("42" in answer or name == "a sentence around it"):
                continue  # "any" takes the last number of a sentence
            # Anything that exceeds its deadline would never end.
            assert not grade_math(response, gold, extract=extract, timeout=timeout).correct, name
    assert not marker.exists()


def test_a_hostile_gold_answer_costs_at_most_the_deadline_too():
    for name, gold in HOSTILE.items():
        if "42" not in gold:
            assert not grade_math(r"\boxed{42}", gold, timeout=SHORT_TIMEOUT).correct, name


def test_what_is_between_boxes_is_read_in_linear_time():
    pieces = (
        *("\n", "  ", "- ", "1. ", "(iv) ", r"\item", "\\ ", "\\\\", "&", "$", "x", "x_1 =", "x  =", "and", ",", "."),
        *("**", "}", "+", r"\text{ }", r"\text { and }", r"\quad", r"\alpha ="),
    )
    for first, second in itertools.product(pieces, pieces):
        for end in ("", "Q"):  # with the letter they are not joined
            between = (first + second) * 500 + end
            assert not grade_math(f"- \\boxed{{1}}{between}\\boxed{{2}}", "3").correct


def test_a_hang_is_a_timeout_and_a_wrong_answer_but_not_a_fault():
    verdict = grade_math(HANGS, INTEGRAL, timeout=0.5)
    assert (verdict.correct, verdict.method) == (False, "timeout")


def test_a_busy_machine_makes_no_right_answer_wrong(monkeypatch):
    """The worker runs at low priority: with a limit of 2 s of wall-clock time, right answers got 0 beside a trainer."""
    decide = grade._by_grammar

    def starved(gold, answer, cpu_s):
        time.sleep(3 * cpu_s)
        return decide(gold, answer, cpu_s)

    monkeypatch.setattr(grade, "_by_grammar", starved)
    assert grade_math(r"\boxed{1/2}", r"\int_0^1 x dx", timeout=0.5).correct
    monkeypatch.setattr(grade, "WALL_S", 0.5)
    with pytest.raises(EnvironmentFault, match="not graded"):
        grade_math(HANGS, INTEGRAL, timeout=PATIENT)


def test_long_answers_are_compared_by_spelling_only():
    long = "+".join(f"x^{{{i}}}" for i in range(1000))
    assert grade_math(f"\\boxed{{{long}}}", long).correct
    verdict = grade_math(f"\\boxed{{{long}+1}}", long)
    assert (verdict.correct, verdict.method) == (False, "too_long")


def test_a_memory_hog_is_killed_at_its_cap():
    # The pool enforces the cap; this tests the verdict, with a memory hog in place of math-verify.
    _, grammar = grade._worker_pools()
    with pytest.raises(MemoryExceeded, match="256 MB"):
        grammar.run(lambda: [bytearray(10**7) for _ in range(10**4)], timeout=PATIENT)


def test_hostile_answers_block_neither_honest_ones_nor_the_event_loop():
    """They hang until they are cancelled; meanwhile the same loop grades honest answers in workers."""

    async def main():
        hostile = [asyncio.create_task(agrade_math(HANGS, INTEGRAL, timeout=280.0)) for _ in range(30)]
        for i in range(2, 12):
            answer, gold = f"\\boxed{{\\sqrt{{{4 * i}}}}}", f"2\\sqrt{{{i}}}"
            assert (await agrade_math(answer, gold, timeout=PATIENT)).correct
        assert not any(task.done() for task in hostile)
        for task in hostile:
            task.cancel()
        return await asyncio.gather(*hostile, return_exceptions=True)

    assert {type(ended) for ended in asyncio.run(main())} == {asyncio.CancelledError}


def test_several_event_loops_in_several_threads_share_the_workers():
    async def main(start):
        verdicts = await asyncio.gather(
            *[
                agrade_math(f"\\boxed{{\\sqrt{{{4 * i}}}}}", f"2\\sqrt{{{i}}}", timeout=PATIENT)
                for i in range(start, start + 8)
            ]
        )
        return all(verdict.correct for verdict in verdicts)

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(lambda start: asyncio.run(main(start)), [2, 10, 20, 30]))


def test_grading_in_a_thread_sets_no_signal_handlers_and_needs_no_main_thread():
    verdicts = []
    thread = threading.Thread(
        target=lambda: verdicts.append(grade_math(r"\boxed{\sum_{i=1}^3 i}", r"\sum_{k=1}^3 k", timeout=PATIENT))
    )
    thread.start()
    thread.join()
    assert verdicts[0].correct


def test_a_deep_stack_of_the_caller_changes_no_verdict():
    def deeper(levels):
        if levels:
            return deeper(levels - 1)
        return grade_math(r"\boxed{\frac{x^2-1}{x-1}}", "x+1", timeout=PATIENT).correct

    depth = sys.getrecursionlimit() - len(inspect.stack()) - 150
    assert deeper(depth) is True


# Arbitrary text

PIECES = r"""  \infty
    \frac { } ( ) [ ] 1 2 12 0 . 5 , ; x y n e i \pi + - * / ^ _ ! % \sqrt \pm = < \le \ne \in \cup \cap \setminus
    \{ \} | \begin{pmatrix} \end{pmatrix} & \\ \text{ \text{cm} and or \sin \log \ln ° ^\circ \binom \lfloor \rfloor
    \mathbb{R} \emptyset : $ \approx \pmod sqrt abc miles \overline{ 1e5 \left \right ² ½ √ 10^{10} \angle f( ' \langle
    \mid \equiv C) (A) \begin{vmatrix} \end{vmatrix} \text{is} 5! \vec ~ \, \! \( \) \[ \] \$ € １ 𝟙
""".split()  # noqa: SIM905
MARKS = [r"\boxed{", "####", "<think>", "</think>", "answer is"]

plain = st.lists(st.sampled_from([*PIECES, " "]), max_size=25).map("".join)
notation = st.lists(st.sampled_from([*PIECES, *MARKS, " "]), max_size=25).map("".join)
anything = (
    st.text(max_size=60)
    | st.text(alphabet=st.characters(categories=["Cs", "Cc", "Cf", "Nd", "Sm"]), max_size=30)
    | notation
)
golds = (
    st.sampled_from(
        ["42", r"\sqrt{2}", "(1,2)", "x+1", "x<5", "1,2", r"\{1,2\}", "52_8", "1:2", r"25\%", "x=5", "Evelyn"]
    )
    | notation
)


@given(response=anything, gold=golds)
@settings(deadline=None, max_examples=400)
def test_no_text_raises(response, gold):
    # Only the fast comparer, for speed; what it passes to workers cannot raise here.
    for text in (response, f"\\boxed{{{response}}}"):
        for extract in ("boxed", "any"):
            grade._decide_fast(text, gold, extract, 1.0)


@given(response=anything, gold=golds)
@settings(deadline=None, max_examples=30)
def test_no_text_raises_in_a_worker(response, gold):
    for text in (response, f"\\boxed{{{response}}}"):
        verdict = grade_math(text, gold, extract="any", timeout=SHORT_TIMEOUT)
        assert verdict.method in ("string", "number", "symbolic", "no_answer", "timeout", "memory", "too_long")


@given(plain)
@settings(deadline=None, max_examples=200)
def test_every_answer_equals_itself(answer):
    balanced = last_boxed(f"\\boxed{{{answer}}}") == answer.strip()
    if balanced and normalize_spelling(normalize(answer)):
        assert grade_math(f"\\boxed{{{answer}}}", answer, timeout=PATIENT).correct


# Programs


def run(program, **kwargs):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, **kwargs)


def test_no_worker_survives_the_program():
    done = run(r"""
        import psutil
        from rllm_gym.grading import grade_math
        grade_math(r"\boxed{\sqrt{8}}", r"2\sqrt{2}", timeout=120)
        print(grade_math(r"\boxed{\int \frac{\sin(x^7+x^5)}{x^{11}+\ln(x)} dx}", r"\int_0^1 x dx", timeout=0.5).method)
        print(*[child.pid for child in psutil.Process().children(recursive=True)])
    """)
    method, pids = done.stdout.splitlines()
    assert method == "timeout"
    assert len(pids.split()) >= 2
    assert until(lambda: not any(is_alive(pid) for pid in map(int, pids.split())))


def test_broken_workers_are_a_fault_and_never_a_wrong_answer():
    done = run(r"""
        import sys
        sys.executable = "/bin/false"
        from rllm_gym.core import EnvironmentFault
        from rllm_gym.grading import grade_math
        print(grade_math(r"\boxed{1/2}", "0.5").correct)
        try:
            grade_math(r"\boxed{\sqrt{8}}", r"2\sqrt{2}")
        except EnvironmentFault as fault:
            print(fault.kind)
    """)
    assert done.stdout.split() == ["True", "grader"], done.stderr


def test_a_fork_grades_with_workers_of_its_own():
    assert grade_math(r"\boxed{\sqrt{8}}", r"2\sqrt{2}", timeout=PATIENT).correct
    pid = os.fork()
    if pid == 0:
        os._exit(0 if grade_math(r"\boxed{\sqrt{18}}", r"3\sqrt{2}", timeout=PATIENT).correct else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert grade_math(r"\boxed{\sqrt{8}}", r"2\sqrt{2}", timeout=PATIENT).correct


def test_answers_decided_without_math_verify_start_no_worker(monkeypatch):
    monkeypatch.setattr(grade, "_worker_pools", lambda: (_NoPool(), _NoPool()))
    for answer in ("9**9**9**9", "9^{9^{9^9}}", "seven apples + x", "((10!)!)!"):
        verdict = grade_math(rf"\boxed{{{answer}}}", r"\int x dx")
        assert (verdict.correct, verdict.method) == (False, "symbolic")


class _NoPool:
    def run(self, work, *_, **__):
        assert work is not grade._by_grammar
        return None, 0.0


def test_no_text_reaches_an_evaluator_in_the_grammar_worker():
    def evaluated():
        import sympy
        import sympy.parsing.sympy_parser as parser

        from rllm_gym.grading.math import math_verify_worker

        found = [
            math_verify_worker.decide(gold, answer)
            for gold, answer in (("6", r"\sum_{i=1}^{3} i"), ("5", "2+3"), ("2.5", r"\frac{5}{2}"))
        ]
        for text in ("__import__('os')", "2+3", "x", "Integer(5)", "(1)", "1;2"):
            for evaluate in (sympy.sympify, parser.parse_expr):
                with contextlib.suppress(SyntaxError, sympy.SympifyError):
                    found.append(f"evaluated {evaluate(text)}")
        return found

    _, grammar = grade._worker_pools()
    assert grammar.run(evaluated, timeout=PATIENT) == [True, True, True]
