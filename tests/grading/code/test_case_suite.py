"""No program that cheats is paid, and honest ones are.

``cases.jsonl`` has a record per line: a task with its tests and an honest program, followed by the attacks on it (class
a: objects that compare favourably; b: data of the test that the program changes, at once or later; c: reading the test;
d: telling runs apart; e: ending or patching the tests; f: hard-coded examples and formats); and honest programs, which
were written before looking at the grader. ``refused`` is the reason for which one of them is not paid: its tests work
only within one process, see ``docs/graders.md``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from grade_many import grade_many

from rllm_gym.grading.code import FunctionTests, StdioTest, StdioTests
from rllm_gym.sandbox import Limits, SandboxPool

LIMITS = Limits(cpu_s=10, wall_s=100)
RECORDS: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "cases.jsonl").read_text("utf-8").splitlines()
]
TASKS = {record["task"]: record for record in RECORDS if "entry" in record and "task" in record}
ATTACKS = {record["attack"]: record for record in RECORDS if "attack" in record}
HONEST = {record["honest"]: record for record in RECORDS if "honest" in record}
RIGHT = {f"solution of {name}": record for name, record in TASKS.items()} | {
    name: record for name, record in HONEST.items() if "refused" not in record
}


def paid(pool: SandboxPool, records: dict[str, dict[str, Any]]) -> set[str]:
    """Return the names of the programs that pass."""
    programs = []
    for record in records.values():
        task = record if "entry" in record else TASKS[record["task"]]
        if task.get("kind") == "stdio":
            tests: Any = StdioTests(tuple(StdioTest(**test) for test in task["tests"]), limits=LIMITS)
        else:
            tests = FunctionTests(task["entry"], task["tests"], task["style"], limits=LIMITS)
        programs.append((record["program"], tests))
    verdicts = dict(zip(records, grade_many(pool, programs)))
    assert not [name for name, verdict in verdicts.items() if verdict.ungradable], "no program can cause it"
    return {name for name, verdict in verdicts.items() if verdict.correct}


def sample(records: dict[str, dict[str, Any]], every: int) -> dict[str, dict[str, Any]]:
    return {name: records[name] for name in list(records)[::every]}


def test_the_suite_has_enough_cases_of_each_class() -> None:
    classes = [record["class"] for record in ATTACKS.values()]
    assert all(classes.count(name) >= 25 for name in "abcdef")
    assert len(RIGHT) - len(TASKS) >= 250


def test_a_sample_of_the_attacks_is_not_paid_and_of_the_honest_programs_is(pool: SandboxPool) -> None:
    assert paid(pool, sample(ATTACKS, 80)) == set()
    assert paid(pool, sample(RIGHT, 80)) == set(sample(RIGHT, 80))


@pytest.mark.long
def test_what_was_paid_once_is_not_and_honest_solutions_of_the_same_tests_are(pool: SandboxPool) -> None:
    """Orders that agree with the first question, errors of all kinds, and data of the test that are no containers."""
    last = (
        "a3_order_first",
        "a3_le_always",
        "a3_error_of_many",
        "a3_eq_gives_object",
        "b3_slots_zeroed",
        "b3_user_dict",
    )
    last += ("b3_string_io_trunc", "b3_memory_view_base", "b3_element", "b3_class_list", "d3_remembers_data_any")
    attacks = {name: record for name, record in ATTACKS.items() if name.startswith(last)}
    assert paid(pool, attacks) == set()
    honest = {f"solution of {record['task']}": RIGHT[f"solution of {record['task']}"] for record in attacks.values()}
    names = (
        "fluent_query_builder",
        "capture_stdout",
        "metaclass_registry",
        "third_card_rank_order",
        "third_mock_clock",
    )
    honest |= {name: RIGHT[name] for name in (*names, "third_write_report_stringio", "third_two_base_exception")}
    assert paid(pool, honest) == set(honest)


def test_state_of_classes_is_left_alone_and_context_managers_hide_no_failure(pool: SandboxPool) -> None:
    """Classes that count or register their objects are honest; those ordered by which was made first are not. Nor is
    what keeps a test from its assertions: a suppressed exception, nothing to loop over."""
    names = ("with_database", "with_opened_asserts", "with_async_session", "with_stack_pytest", "versions_in_order")
    names += ("loops_nothing_to_zip", "loops_nothing_to_zip_pytest")
    attacks = {name: record for name, record in ATTACKS.items() if record["task"] in names}
    assert len(attacks) >= 14
    assert paid(pool, attacks) == set()
    honest = {f"solution of {name}": RIGHT[f"solution of {name}"] for name in names}
    for name in (
        "instances_counted_by_class", "automatic_ids_and_order", "registry_refuses_duplicates", "pool_of_limited_size",
        "scheduler_heap_of_jobs", "cause_is_the_original_error", "errors_are_collected", "sum_of_returned_objects",
        "suppress_like_contextlib", "context_manager_that_rolls_back", "zipped_results", "loop_that_raises",
    ):  # fmt: skip
        honest[name] = RIGHT[name]
    assert paid(pool, honest) == set(honest)


@pytest.mark.long
def test_nothing_is_not_equal_to_something_and_the_names_that_a_test_expects_differ(pool: SandboxPool) -> None:
    """Empty results, of which a test compares no item; constants, classes and errors that are one and the same; tasks
    that the program cancels; and sizes with which it makes the test itself fail."""
    names = (
        "all_zip",
        "sum_zip",
        "np_norm",
        "np_single",
        "np_not_any",
        "while_loop",
        "enum_alias",
        "factory",
        "errors",
    )
    tasks = {f"fifth_{name}" for name in (*names, "taskgroup", "size_then_call", "len_of_object", "padded")}
    attacks = {name: record for name, record in ATTACKS.items() if record["task"] in tasks}
    assert len(attacks) >= 20
    assert paid(pool, attacks) == set()
    honest = {f"solution of {name}": RIGHT[f"solution of {name}"] for name in tasks}
    for name in (
        "all_of_empty", "zip_compare_all", "np_empty_expected", "np_sub_scalar", "np_compare_filter", "while_collects",
        "dot_of_empty", "enum_alias_honest", "error_hierarchy", "isinstance_hierarchy", "constants_with_the_same_value",
        "cancel_honest", "cancel_by_the_program_named", "multi_function_own_names", "zero_absorbs",
        "np_inplace_out", "fixtures_and_params",
    ):  # fmt: skip
        honest[name] = RIGHT[f"fifth_{name}"]
    assert paid(pool, honest) == set(honest)


@pytest.mark.long
def test_a_result_is_one_number_and_nothing_is_not_close_to_something(pool: SandboxPool) -> None:
    """Numbers that say something else to ``abs()``, from which a test derives its tolerance; empty arrays that agree
    with every number; items that ``zip`` does not yield; and operators of named tuples, which are honest."""
    names = ("approx_rev", "np1", "notlist", "reltol", "helper_np")
    attacks = {
        name: record for name, record in ATTACKS.items() if record["task"] in {f"sixth_{name}" for name in names}
    }
    assert len(attacks) >= 12
    assert paid(pool, attacks) == set()
    honest = {f"solution of sixth_{name}": RIGHT[f"solution of sixth_{name}"] for name in (*names, "items")}
    for name in (
        "nt_vector", "nt_interval", "nt_callable", "np_where_scalar", "tuple_subclass_result", "zip_comprehensions",
        "approx_empty_both", "np_empty_honest", "mod_int_subclass",
    ):  # fmt: skip
        honest[name] = RIGHT[f"sixth_{name}"]
    assert paid(pool, honest) == set(honest)


def test_what_honest_programs_ask_about_functions_classes_and_files_is_answered(pool: SandboxPool) -> None:
    """The code object of a function of the test, the bases of a class, errors of the library, archives and
    configuration files. None of it is of use to a program that cheats."""
    names = {f"seventh_{name}" for name in ("curry", "kept_function", "bases", "sqlite_errors", "zip_errors")}
    attacks = {name: record for name, record in ATTACKS.items() if record["task"] in names}
    assert len(attacks) >= 7
    assert paid(pool, attacks) == set()
    honest = {f"solution of {name}": RIGHT[f"solution of {name}"] for name in names}
    for name in (
        "curry_code", "config_written", "errors_of_library", "error_of_library_derived", "api_mixin_mro_super",
        "bcb_sqlite_connection", "bcb_zip_archive",
    ):  # fmt: skip
        honest[name] = RIGHT[f"seventh_{name}"]
    assert paid(pool, honest) == set(honest)


def test_constants_callbacks_and_rearranged_arguments_are_of_no_use(pool: SandboxPool) -> None:
    """Constants that become the last result, suppressed assertions of callbacks, a sorted argument with which an easier
    question has the expected answer, records of mocks, and data of the test's classes."""
    attacks = {name: record for name, record in ATTACKS.items() if record["task"].startswith("eighth_")}
    assert len(attacks) >= 11
    assert paid(pool, attacks) == set()
    honest = {name: record for name, record in RIGHT.items() if name.removeprefix("solution of ").startswith("eighth_")}
    assert paid(pool, honest) == set(honest)


def test_a_result_goes_as_far_as_what_it_is_compared_with_and_is_a_number(pool: SandboxPool) -> None:
    """Results that end before the expected data, infinities that set their own tolerance, lengths that change, the last
    result that a constructor returns, and assertions that the program keeps from the test."""
    names = (
        "enumerate_expected", "all_enumerate", "items_of_dict", "helper_zip", "all_never_entered", "relative_tolerance",
        "not_greater", "length_between", "suppressed_words", "words_of_names", "last_made",
    )  # fmt: skip
    tasks = {f"tenth_{name}" for name in names}
    attacks = {name: record for name, record in ATTACKS.items() if record["task"] in tasks}
    assert len(attacks) >= 18
    assert paid(pool, attacks) == set()
    honest = {f"solution of {name}": RIGHT[f"solution of {name}"] for name in tasks}
    for name in (
        "all_enumerate_helper", "truncate_is_prefix", "table_longer_than_result", "dijkstra_unreachable", "nan_mean",
        "log_zero_isinf", "huge_float_factorial", "enum_lookup", "flyweight_and_pool", "mini_test_runner",
        "retry_until_it_holds", "validators_with_assert", "not_any_of_empty", "runner_of_cases", "stopwatch_property",
    ):  # fmt: skip
        honest[f"tenth_{name}"] = RIGHT[f"tenth_{name}"]
    assert paid(pool, honest) == set(honest)


def test_operators_between_results_and_expected_values_tell_nothing_and_assertions_are_reached(
    pool: SandboxPool,
) -> None:
    """Objects of a class of the test that are near, or in order with, whatever they are compared with; functions of the
    test with its only assertions that are never called, or whose failures a context manager suppresses."""
    names = (
        "circle_measured", "average_of_numbers", "vector_norm", "bag_difference", "number_lcm", "calculator_unittest",
        "bus_calls_handlers", "bus_calls_handlers_pytest", "guard_verified_by_helper", "safe_decorator",
    )  # fmt: skip
    attacks = {name: record for name, record in ATTACKS.items() if record["task"] in names}
    assert len(attacks) >= 15
    assert paid(pool, attacks) == set()
    honest = {f"solution of {name}": RIGHT[f"solution of {name}"] for name in names}
    for name in (
        "date_parse_plus", "fraction_compare_numbers", "matrix_identity_scaled", "counter_eq_int", "bigint_strings",
        "temperature_classmethod", "interval_set_ops", "vector2d_mixed", "rational_quadratic_modint",
        "string_builder_fluent", "vector_ops_numpy_like", "handler_bus_asserts", "pipeline_compose",
    ):  # fmt: skip
        honest[f"eleventh_{name}"] = RIGHT[f"eleventh_{name}"]
    assert paid(pool, honest) == set(honest)


def test_data_that_are_too_large_for_a_message_are_the_tasks_fault(pool: SandboxPool) -> None:
    """Nobody could pass: a reward of 0 would hide it. Not so if the program may have said how large they are."""
    tests = FunctionTests("f", 'assert f("ab") == 2\nassert f("x" * 20_000_000) == 20_000_000\n', "assert")
    chosen = FunctionTests("f", 'assert f("ab") > 1\nassert f("x" * f("")) == 2\n', "assert")
    sizes = "def f(s):\n    return len(s) or 20_000_000\n"
    own, by_the_program = grade_many(pool, [("def f(s):\n    return len(s)\n", tests), (sizes, chosen)])
    assert "20,000,0" in own.ungradable
    assert not by_the_program.correct
    assert not by_the_program.ungradable


def test_a_module_that_is_not_installed_is_the_tasks_fault(pool: SandboxPool) -> None:
    right, check = "def f(x):\n    return x + 1\n", "    assert f(1) == 2\n"
    missing = [
        FunctionTests("f", "import not_there\nassert f(1) == 2\n", "assert"),
        FunctionTests("f", "assert f(1) == 2\n", "assert", setup="from not_there.inner import thing\n"),
        FunctionTests("f", f"def check(f):\n    import not_there as n\n{check}", "check"),
        FunctionTests("f", f"import not_there\ndef test_f():\n{check}", "pytest"),
    ]
    for verdict in grade_many(pool, [(right, tests) for tests in missing]):
        assert "'not_there', which is not installed" in verdict.ungradable
    usual = [
        FunctionTests("f", "import json.decoder, pytest\nassert f(1) == 2\n", "assert"),
        FunctionTests("f", "try:\n    import not_there\nexcept ImportError:\n    pass\nassert f(1) == 2\n", "assert"),
    ]
    for verdict in grade_many(pool, [(right, tests) for tests in usual]):
        assert verdict.correct, verdict
    # What the program itself imports is not the fault of the task.
    (own,) = grade_many(pool, [("import not_there\ndef f(x):\n    return x + 1\n", usual[0])])
    assert not own.correct
    assert not own.ungradable


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_no_attack_is_paid(confined_pool: SandboxPool, part: int) -> None:
    assert paid(confined_pool, {name: ATTACKS[name] for name in list(ATTACKS)[part::4]}) == set()


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_honest_programs_are_paid(confined_pool: SandboxPool, part: int) -> None:
    chosen = {name: RIGHT[name] for name in list(RIGHT)[part::4]}
    assert set(chosen) - paid(confined_pool, chosen) == set()
