"""Search-v0: every built-in question has one answer, which searching finds and guessing does not."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from typing import Any

import pytest
from search_solver import Solver

from rllm_gym.core import SPLITS, TaskError
from rllm_gym.envs.search import SearchEnv
from rllm_gym.envs.search.built_in_corpus import build_corpus
from rllm_gym.envs.search.corpus import Document, LocalCorpus
from rllm_gym.envs.search.demonstrations import replies
from rllm_gym.envs.search.questions import FAMILIES, search_tasks
from rllm_gym.grading.short_text import exact_match, f1_score

CASES = [(family, hops) for family in FAMILIES for hops in (1, 2, 3, 4) if hops > 1 or family == "bridge"]
ROWS = [
    {
        "question": "Who founded the town where Ada Berg was born?",
        "answer": "Igor Dahl",
        "answer_aliases": ["I. Dahl"],
        "documents": [
            {"id": "ada", "title": "Ada Berg", "text": "Ada Berg was born in Norhaven."},
            {"id": "nor", "title": "Norhaven", "text": "Norhaven was founded by Igor Dahl."},
            {"id": "long", "title": "Long", "text": "start " + "word " * 3_000 + "end"},
        ],
        "supporting": ["ada", "nor"],
    }
]


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.fixture
def env():
    env = SearchEnv(tasks=ROWS)
    env.reset(seed=0)
    yield env
    env.close()


# The built-in questions


@pytest.mark.parametrize(("family", "hops"), CASES)
def test_the_articles_give_each_question_exactly_one_answer(family, hops):
    tasks = search_tasks(families=family, difficulty=hops, articles=60)
    for index in range(3):
        task = tasks[index]
        assert len(set(task.data["supporting"])) == hops
        solver = Solver(build_corpus(task.data["corpus_seed"], 60))
        assert solver.answers(task.content) == set(task.data["answers"]), task.content


def test_a_search_for_what_is_known_finds_each_document_and_the_solution_scores():
    for difficulty in (0, 1, 2, 3, 4):
        env = SearchEnv(difficulty=difficulty, citation_reward=0.5)
        for index in range(8):
            known, _ = env.reset(options={"task": index})
            for reply, document in zip(replies(env.task)[:-1:2], env.task.data["supporting"], strict=True):
                query = json.loads(reply[11:-12])["arguments"]["query"]
                assert set(re.findall(r"\w+", query)) <= set(re.findall(r"\w+", known)), (query, known)
                results = env.step(reply)[0]
                assert f"\n[{document}] " in results, (query, results)
                known += env.step(call("read", id=document))[0]
            assert env.task.data["answers"][0] in known
            _, reward, terminated, _, info = env.step(replies(env.task)[-1])
            assert (reward, terminated, info["success"]) == (1.5, True, True)
            assert (info["citation_precision"], info["citation_recall"]) == (1, 1)
        env.close()


def test_no_constant_answer_and_nothing_in_the_question_scores():
    tasks = search_tasks()
    sample = [tasks[index] for index in range(200)]
    gold = [task.data["answers"] for task in sample]
    words = Counter(word for answers in gold for word in {*answers, *answers[0].split()})
    best = {"exact": 0.0, "f1": 0.0}
    for constant, _ in words.most_common(60):
        best["exact"] = max(best["exact"], sum(exact_match(constant, answers) for answers in gold) / len(gold))
        best["f1"] = max(best["f1"], sum(f1_score(constant, answers) for answers in gold) / len(gold))
    assert best["exact"] <= 0.02
    assert best["f1"] <= 0.03
    assert all(f1_score(task.content, task.data["answers"]) == 0 for task in sample)


def test_splits_share_no_question_and_no_article():
    seen: dict[str, set[Any]] = {}
    for split in SPLITS:
        tasks = search_tasks(split=split)
        found = [tasks[index] for index in range(80)]
        seen[split] = {task.content for task in found} | {task.data["corpus_seed"] for task in found}
        assert {task.data["difficulty"] for task in found} == {1, 2, 3, 4}
        assert {task.data["family"] for task in found} == set(FAMILIES)
    assert not seen["train"] & seen["test"]
    assert not seen["train"] & seen["validation"]
    assert not seen["validation"] & seen["test"]


def test_the_questions_and_articles_of_v0_do_not_change():
    text = json.dumps(
        [
            [tasks[index].to_json() for tasks in (search_tasks(), search_tasks(difficulty=0)) for index in range(5)],
            [[one.id, one.title, one.text] for one in build_corpus(1, 160).articles()],
            [[one.id, one.title, one.text] for one in build_corpus(1, 12).articles(fillers=False)],
        ]
    )
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "10a35048936a4088"


def test_difficulty_0_is_short_enough_for_a_small_model():
    env = SearchEnv(difficulty=0, tools_in_prompt=False, top_k=3, snippet_chars=60)
    observation, info = env.reset(seed=0)
    assert len(observation) < 450
    assert [tool["function"]["name"] for tool in json.loads(info["tools"])] == ["search", "read"]
    assert len(env.step(call("search", query=env.task.content))[0]) < 350


# Tools


def test_search_and_read_return_bounded_text(env):
    observation, reward, terminated, _, info = env.step(call("search", query="founded Norhaven"))
    assert observation.startswith("Result:\n[nor] Norhaven: Norhaven was founded by Igor Dahl.\n[ada] Ada Berg: ")
    assert (reward, terminated, info["tools_called"], info["invalid_action"]) == (0, False, 1, False)
    observation, *_, info = env.step(call("read", id="ada") + call("read", id="long") + call("search", query="zzz"))
    assert "Result 1 of 3:\n[ada] Ada Berg\nAda Berg was born in Norhaven." in observation
    assert "No document has any of these words" in observation
    assert len(observation) < 4_500
    assert info["tools_called"] == 4
    start, parts = 0, ""
    while True:  # reading on gives the whole text
        observation, *_ = env.step(call("read", id="long", start=start))
        parts += observation.split("\n", 2)[2].rpartition("\n(characters")[0] or observation.split("\n", 2)[2]
        found = re.search(r"read on with start = (\d+)", observation)
        if not found:
            break
        start = int(found[1])
    assert parts == ROWS[0]["documents"][2]["text"]


NOTATIONS = [
    "<tool_call><function=search><parameter=query>Norhaven</parameter><parameter=k>1</parameter></function></tool_call>",
    '{"name": "search", "arguments": {"query": "Norhaven", "k": 1}}',
    '[TOOL_CALLS]search[ARGS]{"query": "Norhaven", "k": "1"}',
]


def test_calls_are_read_in_the_notations_of_models(env):
    for notation in NOTATIONS:
        env.reset(seed=0)
        observation, *_ = env.step(notation)
        assert observation.count("\n[") == 1, notation


REFUSED = [
    ("Igor Dahl", "no \\boxed{} with text. Nor does it call a tool."),
    ("", "no \\boxed{}"),
    ("\\boxed{ }", "no \\boxed{}"),
    ("<think>\\boxed{Igor Dahl}", "ends inside <think>"),
    (call("search", query="x") * 9, "9 tool calls, and at most 8"),
    (call("search"), "'query' of 1 to 1000 characters"),
    (call("search", query=["x"]), "'query' of 1 to 1000 characters"),
    (call("search", query="x" * 1_001), "'query' of 1 to 1000 characters"),
    (call("search", query="x", top=3), "'query' of 1 to 1000 characters"),
    (call("search", query="x", k=0), "from 1 to 20"),
    (call("search", query="x", k=True), "from 1 to 20"),
    (call("search", query="x", k="many"), "from 1 to 20"),
    (call("read", id="ada", start=-1), "from 0"),
    (call("read"), "'id' of 1 to 200 characters"),
    (call("open", id="ada"), "the tools are 'search' and 'read'"),
    (call("search", query="x") + call("open"), "Tool call 2 names the tool 'open'"),
]
REPORTED = [
    (call("search", query="the"), "(failed) The query has no word"),
    (call("search", query="?!"), "(failed) The query has no word"),
    (call("search", query="\ud800"), "(failed) The query has no word"),
    (call("read", id="\U000e0001" * 200) * 8, "(failed) There is no document"),
    (call("read", id="ada", start=10**9), "has only 30 characters"),
]


def test_what_is_no_call_and_no_answer_changes_nothing_and_a_failed_call_is_reported(env):
    for reply, text in REFUSED:
        env.reset(seed=0)
        observation, reward, terminated, _, info = env.step(reply)
        assert text in observation
        assert (reward, terminated, info["invalid_action"], info["tools_called"]) == (0, False, True, 0), reply[:80]
    for reply, text in REPORTED:
        env.reset(seed=0)
        observation, reward, terminated, _, info = env.step(reply)
        assert text in observation
        assert observation in env.observation_space
        observation.encode()
        assert (reward, terminated, info["invalid_action"]) == (0, False, False), reply[:80]


def test_an_observation_is_bounded_whatever_the_documents_are():
    documents = [{"id": f"{n}" * 100, "title": "same " * 100, "text": "same " * 5_000} for n in range(10, 40)]
    rows = [{"question": "Which?", "answer": "None of them", "documents": documents}]
    env = SearchEnv(tasks=rows, max_observation_chars=10_000, max_result_chars=9_000, snippet_chars=5_000)
    env.reset(seed=0)
    for reply in (
        call("search", query="same", k=20) * 8,
        call("read", id="10" * 100) * 8,
        call("search", query="same"),
    ):
        observation, *_ = env.step(reply)
        assert observation in env.observation_space
        assert len(observation) > 4_000


# Rewards


def test_the_reward_is_for_the_answer_and_cannot_be_bought():
    everything = "\n".join(one["text"] for one in ROWS[0]["documents"])
    answers = [  # reply, exact match, F1
        ("\\boxed{Igor Dahl}", 1, 1),
        ("<think>\\boxed{x}</think>\\boxed{\\text{igor dahl.}}", 1, 1),
        ("\\boxed{The I. Dahl}", 1, 1),
        ("\\boxed{Dahl}", 0, 2 / 3),
        ("\\boxed{Igor Dahl, Ada Berg, Norhaven}", 0, 4 / 7),
        (f"\\boxed{{{everything}}}", 0, 0),
        ("\\boxed{Igor Dahl} or \\boxed{Ada Berg}", 0, 0),
        ("Igor Dahl founded it, so \\boxed{yes}", 0, 0),
    ]
    for reward in ("exact", "f1"):
        env = SearchEnv(tasks=ROWS, reward=reward)
        for reply, exact, f1 in answers:
            env.reset(seed=0)
            observation, rewarded, terminated, _, info = env.step(reply)
            assert rewarded == pytest.approx(exact if reward == "exact" else f1), reply[:80]
            assert (terminated, info["success"], info["exact_match"]) == (True, exact == 1, exact)
            assert info["f1"] == pytest.approx(f1)
            assert "Igor" not in observation


def test_citations_count_with_a_right_answer_only():
    env = SearchEnv(tasks=ROWS, citation_reward=1.0)
    observation, _ = env.reset(seed=0)
    assert "as [id]" in observation
    right, wrong = "\\boxed{Igor Dahl}", "\\boxed{Ada Berg}"
    for reply, total, precision, recall in (
        (f"See [ada] and [nor]: {right}", 2, 1, 1),
        (f"{right} [ada, nor]", 2, 1, 1),
        (f"{right} [ada]", 1 + 2 / 3, 1, 0.5),
        (f"{right} [ada] [ada] [nor] [long] [more]", 1 + 2 / 3, 0.5, 1),
        (f"<think>[ada] [nor]</think> {right}", 1, 0, 0),
        (f"{wrong} [ada] [nor]", 0, 1, 1),
        (right + "".join(f"[{n}]" for n in range(200)) + "[ada][nor]", 1, 0, 0),
    ):
        env.reset(seed=0)
        _, reward, *_, info = env.step(reply)
        assert reward == pytest.approx(total), reply[:80]
        assert (info["citation_precision"], info["citation_recall"]) == (precision, recall)
    unnamed = [{key: value for key, value in ROWS[0].items() if key != "supporting"}]
    with pytest.raises(TaskError, match="citation_reward"):
        SearchEnv(tasks=unnamed, citation_reward=1.0).reset(seed=0)


def test_a_saved_episode_continues_with_the_same_results(env):
    env.step(call("search", query="Ada"))
    copy = env.fork()
    for one in (env, copy):
        observation, *_, info = one.step(call("read", id="nor"))
        assert "Igor Dahl" in observation
        assert info["tools_called"] == 2
    assert env.render() == copy.render()


WRONG_ARGUMENTS = [
    ({"reward": "bleu"}, ValueError, "'exact', 'f1'"),
    ({"citation_reward": -1}, ValueError, "citation_reward"),
    ({"top_k": 21}, ValueError, "at most 20"),
    ({"snippet_chars": 5}, ValueError, "at least 20"),
    ({"max_result_chars": 10}, ValueError, "at least 300"),
    ({"search_timeout": 5}, ValueError, "corpus=None is no URL"),
    ({"tasks": ROWS, "corpus": "http://localhost:1", "search_timeout": 0}, ValueError, "search_timeout=0"),
    ({"tools_in_prompt": "no"}, ValueError, "True or False"),
    ({"corpus": "x.jsonl"}, TaskError, "corpus= has no effect"),
    ({"tasks": ROWS, "corpus_size": 20}, TaskError, "corpus_size=20"),
    ({"tasks": ROWS, "difficulty": 2}, TaskError, "difficulty=2"),
    ({"corpus_size": 5}, TaskError, "12 to 2000"),
    ({"difficulty": 5}, TaskError, "0 to 4"),
    ({"families": "riddle"}, TaskError, "bridge, comparison, intersection"),
    ({"families": "comparison", "difficulty": 1}, TaskError, "no questions of difficulty 1"),
]


def test_an_argument_out_of_range_is_named_at_once():
    for arguments, error, text in WRONG_ARGUMENTS:
        with pytest.raises(error, match=re.escape(text)):
            SearchEnv(**arguments)


# BM25


def test_the_best_k_are_those_of_a_full_sort_and_ties_are_in_order():
    rng = random.Random(0)
    words = [f"word{number}" for number in range(30)]
    documents = [Document(f"{n}", "", " ".join(rng.choices(words, k=rng.randint(1, 12)))) for n in range(80)]
    documents += [Document("same1", "", "word1 word2"), Document("same2", "", "word1 word2"), Document("none", "", "")]
    corpus = LocalCorpus(documents)
    for _ in range(30):
        query = " ".join(rng.choices(words, k=3))
        everything = [document.id for document in corpus.search(query, len(documents))]
        assert len(set(everything)) == len(everything)
        assert set(everything) == {one.id for one in documents if set(query.split()) & set(one.text.split())}
        for k in (1, 2, 5, 20):
            assert [document.id for document in corpus.search(query, k)] == everything[:k]
        if "same1" in everything:
            assert everything.index("same2") == everything.index("same1") + 1


def test_a_collection_that_cannot_be_searched_is_refused(monkeypatch):
    for documents, text in (
        ([Document("1", "", "?!"), Document("2", "", "")], "none of its documents has a word"),
        ([Document("1", "", "one"), Document("1", "", "two")], "the same id"),
    ):
        with pytest.raises(TaskError, match=text):
            LocalCorpus(documents)
    monkeypatch.setattr("rllm_gym.envs.search.corpus.MAX_CORPUS_CHARS", 210)
    with pytest.raises(TaskError, match="run a retrieval server"):
        LocalCorpus([Document("1", "", "seven ch"), Document("2", "", "seven ch")])
