"""Search-v0 with data of one's own: rows of the usual data sets, collections in files, and retrieval servers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web

from rllm_gym.core import EnvironmentFault, StopReason, TaskError
from rllm_gym.engine import AgentExecutionEngine
from rllm_gym.envs.search import SearchEnv
from rllm_gym.envs.search.corpus import open_corpus
from rllm_gym.samplers import ScriptedSampler

ADA = ["Ada Berg was born in Norhaven.", ' She wrote "Tides".']
NORHAVEN = ["Norhaven is a town.", " Igor Dahl founded it."]
LEDE = {"question": "Who founded the birthplace of Ada Berg?", "answer": "Igor Dahl"}
PARAGRAPHS = [
    {"idx": 0, "title": "Ada Berg", "paragraph_text": "".join(ADA), "is_supporting": True},
    {"idx": 1, "title": "Oslo", "paragraph_text": "Oslo is a city.", "is_supporting": False},
    {"idx": 2, "title": "Norhaven", "paragraph_text": "".join(NORHAVEN), "is_supporting": True},
]
PAIRS = [["Ada Berg", ADA], ["Oslo", ["Oslo is a city."]], ["Norhaven", NORHAVEN]]
FACTS = [["Ada Berg", 0], ["Norhaven", 1]]
COLUMNS = {"title": [title for title, _ in PAIRS], "sentences": [text for _, text in PAIRS]}
DOCS = [
    {"docid": "17", "text": "".join(ADA), "url": "https://example.org/ada"},
    {"docid": "29", "text": "".join(NORHAVEN), "url": "https://example.org/norhaven"},
]
FORMATS: dict[str, tuple[dict[str, Any], list[str]]] = {  # a row, and the ids of its supporting documents
    "hotpotqa": ({**LEDE, "_id": "5a", "context": PAIRS, "supporting_facts": FACTS, "level": "hard"}, ["p1", "p3"]),
    "hotpotqa on the hub": (
        {
            **LEDE,
            "id": "5a",
            "context": COLUMNS,
            "supporting_facts": {"title": ["Ada Berg", "Norhaven"], "sent_id": [0, 1]},
        },
        ["p1", "p3"],
    ),
    "2wiki": (
        {
            **LEDE,
            "_id": "x",
            "context": json.dumps(PAIRS),
            "supporting_facts": json.dumps(FACTS),
            "type": "compositional",
        },
        ["p1", "p3"],
    ),
    "musique": (
        {**LEDE, "id": "2hop", "paragraphs": PARAGRAPHS, "answer_aliases": ["I. Dahl"], "answerable": True},
        ["p1", "p3"],
    ),
    "browsecomp-plus": (
        {
            "query_id": "3",
            "query": LEDE["question"],
            "answer": "Igor Dahl",
            "evidence_docs": DOCS,
            "gold_docs": DOCS[1:],
            "negative_docs": [{"docid": "31", "text": "Oslo is a city."}],
        },
        ["17", "29"],
    ),
    "own": (
        {
            "question": LEDE["question"],
            "golden_answers": ["Igor Dahl", "I. Dahl"],
            "documents": [
                {"id": "ada", "contents": '"Ada Berg"\n' + "".join(ADA)},
                {"id": 5, "text": "".join(NORHAVEN)},
            ],
            "supporting": ["ada", 5],
        },
        ["ada", "5"],
    ),
}


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_the_usual_data_sets_are_searched_in_their_own_documents(name, tmp_path):
    row, supporting = FORMATS[name]
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    env = SearchEnv(tasks=file, citation_reward=1.0)
    env.reset(seed=0)
    for query, text in (("birthplace Ada Berg", "born in Norhaven"), ("Norhaven founded", "Igor Dahl founded it")):
        assert text in env.step(call("search", query=query))[0]
    assert "Igor Dahl founded it." in env.step(call("read", id=supporting[1]))[0]
    cited = "".join(f"[{one}]" for one in supporting)
    assert env.step(f"\\boxed{{Igor Dahl}} {cited}")[1] == 2
    # A task that was saved as JSON is the same task.
    again = SearchEnv(tasks=[env.task.to_json()])
    assert again.tasks[0] == env.task
    again.reset(seed=0)
    aliases = "answer_aliases" in row or "golden_answers" in row
    assert again.step("\\boxed{I. Dahl}")[1] == float(aliases)


WRONG_ROWS = [
    ({"answer": "x", "documents": DOCS}, "its question is None"),
    ({"question": "Who?", "documents": DOCS}, "no answer"),
    ({"question": "Who?", "answer": "", "documents": DOCS}, "must be a string"),
    ({"question": "Who?", "answer": ["x", 3.5, None], "documents": DOCS}, "list of 1 to 1000 strings"),
    ({"question": "Who?", "answer": {"a": 1}, "documents": DOCS}, "must be a list"),
    ({"question": "Who?", "answer": "x"}, "no documents: none of documents, paragraphs, context"),
    ({"question": "Who?", "answer": "x", "context": "[[1, "}, "'context' begins like JSON"),
    ({"question": "Who?", "answer": "x", "context": 5}, "'context' is 5"),
    ({"question": "Who?", "answer": "x", "documents": [{"title": "no text"}]}, "no text"),
    ({"question": "Who?", "answer": "x", "documents": [{"id": "[1]", "text": "a b"}]}, "'[1]'"),
    ({"question": "Who?", "answer": "x", "documents": [7]}, "a document is 7"),
    ({"question": "Who?", "answer": "x", "documents": DOCS, "supporting": ["18"]}, "'18'"),
    ({"question": "Who?", "answer": "x", "paragraphs": PARAGRAPHS, "answerable": False}, "answerable rows only"),
    ({"question": "Who?", "answer": "x", "corpus_seed": -1, "articles": 160, "difficulty": 1}, "its corpus_seed is -1"),
    (
        {"question": "Who?", "answer": "x", "corpus_seed": 1, "articles": 10**9, "difficulty": 1},
        "its articles is 1000000000",
    ),
]


def test_a_row_that_cannot_be_used_is_named_with_the_reason():
    for row, text in WRONG_ROWS:
        with pytest.raises(TaskError) as caught:
            SearchEnv(tasks=[FORMATS["musique"][0], row])
        assert text in str(caught.value), row
        assert "row 1" in str(caught.value)


# A collection in a file


def write(path: Any, rows: list[Any]) -> Any:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_file_is_searched_instead_of_the_rows_and_shared_in_the_process(tmp_path):
    wiki = [{"id": str(n), "contents": f'"Town {n}"\nTown number{n} was founded by person{n}.'} for n in range(500)]
    file = write(tmp_path / "wiki.jsonl", wiki)
    rows = [{"question": "Who founded number77?", "answer": "person77", "context": PAIRS, "supporting": ["77"]}]
    env = SearchEnv(tasks=rows, corpus=file, citation_reward=1.0)
    env.reset(seed=0)
    observation, *_ = env.step(call("search", query="number77"))
    assert observation == "Result:\n[77] Town 77: Town number77 was founded by person77."
    assert "No document has" in env.step(call("search", query="Norhaven"))[0]
    assert env.fork().step(call("read", id="78"))[0].endswith("Town number78 was founded by person78.")
    assert env.step("\\boxed{person77} [77]")[1] == 2
    assert open_corpus(str(file)) is open_corpus(file)
    env = SearchEnv(tasks=rows, corpus=file)
    write(file, wiki[:100])
    assert len(open_corpus(file)) == 100  # a changed file is read again
    for reply in (call("search", query="number77"), call("read", id="77"), call("read", id="absent")):
        env.reset(seed=0)
        with pytest.raises(EnvironmentFault, match="was changed while it was in use"):
            env.step(reply)
    env = SearchEnv(tasks=rows, corpus=file)
    env.reset(seed=0)
    assert "There is no document 'absent'" in env.step(call("read", id="absent"))[0]
    missing = [{**rows[0], "supporting": ["p1"]}]
    with pytest.raises(TaskError, match=r"\['p1'\] are not in the corpus"):
        SearchEnv(tasks=missing, corpus=file, citation_reward=1.0).reset(seed=0)


def test_a_collection_that_cannot_be_used_is_named_with_its_line(tmp_path):
    good = {"id": "1", "title": "One", "text": "one"}
    for name, rows, text in (
        ("twice.jsonl", [good, good], "'1'"),
        ("text.jsonl", [good, {"id": "2", "title": "Two"}], "line 2: a document has no text"),
        ("id.jsonl", [good, {"id": "a]b", "text": "x"}], "line 2: a document has the id"),
        ("title.jsonl", [{"id": "2", "title": ["Two"], "text": "x"}], "line 1: the document '2' has the title"),
    ):
        with pytest.raises(TaskError) as caught:
            open_corpus(write(tmp_path / name, rows))
        assert text in str(caught.value)
        assert name.partition(".")[0] in str(caught.value)
    with pytest.raises(TaskError, match="absent"):
        open_corpus(tmp_path / "absent.jsonl")


# A retrieval server


@contextmanager
def served(answer: Any) -> Iterator[tuple[str, list[Any]]]:
    """Serve ``POST /retrieve`` with a coroutine; yield the URL and the requests."""
    requests: list[Any] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        requests.append(await request.json())
        return await answer(requests[-1])

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_post("/retrieve", handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return runner

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    runner = asyncio.run_coroutine_threadsafe(start(), loop).result(30)

    async def stop() -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()  # a handler that never answers
        await asyncio.gather(*others, return_exceptions=True)
        await runner.cleanup()

    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", requests
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


def search_r1(documents: list[Any]) -> Any:
    return {"result": [[{"document": document, "score": 1.5} for document in documents]]}


def rllm(documents: list[Any]) -> Any:
    results = [{"id": f"doc_{n}", "content": one, "score": 1.5} for n, one in enumerate(documents, 1)]
    return {"query": "x", "method": "dense", "results": results, "num_results": len(results)}


QUESTION = [{"question": LEDE["question"], "answer": "Igor Dahl"}]


@pytest.mark.parametrize("form", [search_r1, rllm])
def test_a_retrieval_server_finds_documents_that_can_then_be_read(form):
    long = "Norhaven " + "and so on " * 60 + "was founded by Igor Dahl."

    async def answer(request: Any) -> web.Response:
        assert request["queries"] == [request["query"]]
        documents = [{"id": "ada", "contents": f'"Ada Berg"\n{ADA[0]}'}, long]
        return web.json_response(form(documents if "Ada" in request["query"] else documents[::-1]))

    with served(answer) as (url, requests):
        env = SearchEnv(tasks=QUESTION, corpus=url, top_k=2)
        env.reset(seed=0)
        assert "(failed) There is no document 'ada'" in env.step(call("read", id="ada"))[0]
        observation, *_ = env.step(call("search", query="Ada Berg"))
        assert f"[ada] Ada Berg: {ADA[0]}" in observation
        name = observation.rpartition("[")[2].partition("]")[0]
        assert requests[-1] == {
            "queries": ["Ada Berg"],
            "topk": 2,
            "return_scores": True,
            "query": "Ada Berg",
            "top_k": 2,
        }
        assert f"[{name}]" in env.step(call("search", query="Norhaven", k=1))[0]  # the same id again
        assert "[ada]" not in env.step(call("search", query="Norhaven", k=1))[0]
        for one in (env, env.fork()):  # what was found is part of the state
            assert one.step(call("read", id=name))[0].endswith("was founded by Igor Dahl.")
        assert env.step("\\boxed{Igor Dahl}")[1] == 1


async def _broken(request: Any) -> web.Response:
    if request["query"].startswith("status"):
        return web.Response(status=int(request["query"].split()[1]))
    if request["query"] == "large":
        return web.Response(body=b"[" * (33 * 2**20))
    if request["query"] == "slow":
        await asyncio.sleep(3600)
    if request["query"] == "moved":
        return web.Response(status=307, headers={"Location": "http://127.0.0.1:1/"})
    texts = {"garbage": "no JSON", "deep": "[" * 100_000, "shape": '{"result": 5}', "empty": '{"result": []}'}
    texts["document"] = '{"results": [{"content": {"id": "[]", "text": "x"}}]}'
    texts["surrogate"] = '{"results": [{"content": "half \\ud800 of one"}]}'
    return web.Response(text=texts.get(request["query"], '{"result": [[]]}'), content_type="application/json")


def test_a_query_that_the_server_cannot_take_is_reported_and_is_no_fault():
    queries = ["status 400", "status 404", "status 500", "slow", "moved", "large"]
    queries += ["garbage", "deep", "shape", "empty", "document"]
    with served(_broken) as (url, _):
        env = SearchEnv(tasks=QUESTION, corpus=f"{url}/retrieve", search_timeout=3.0, max_turns=50)
        env.reset(seed=0)
        for query in queries:
            observation, reward, terminated, _, info = env.step(call("search", query=query))
            assert observation.startswith("Result:\n(failed) The search engine cannot answer this query"), query
            assert (reward, terminated, info["invalid_action"]) == (0, False, False)
        assert "No document has" in env.step(call("search", query="fine"))[0]
        env.step(call("search", query="surrogate"))[0].encode()


@pytest.mark.parametrize("status", [500, 404, None])
def test_a_server_that_fails_is_a_fault_and_no_reward(status):
    async def answer(request: Any) -> web.Response:
        return web.Response(status=status)

    if status is None:
        with served(answer) as (url, _):
            pass  # nothing listens there any more
        env = SearchEnv(tasks=QUESTION, corpus=url)
        env.reset(seed=0)
        with pytest.raises(
            EnvironmentFault, match=r"retrieval server at http://127.0.0.1:\d+/retrieve failed"
        ) as caught:
            env.step(call("search", query="Ada"))
    else:
        with served(answer) as (url, _):
            env = SearchEnv(tasks=QUESTION, corpus=url)
            env.reset(seed=0)
            with pytest.raises(EnvironmentFault, match=f"HTTP status {status}") as caught:
                env.step(call("search", query="Ada"))
    assert caught.value.kind == "retrieval_server"


def test_a_url_that_cannot_be_used_is_refused():
    with pytest.raises(ValueError, match="must be a URL"):
        SearchEnv(tasks=QUESTION, corpus="http://")


def test_the_default_agent_plays_many_episodes_at_once_and_a_broken_server_drops_them():
    replies = [call("search", query="Ada Berg"), call("search", query="Norhaven"), "\\boxed{Igor Dahl}"]

    async def answer(request: Any) -> web.Response:
        await asyncio.sleep(0)
        return web.json_response(search_r1(["".join(ADA), "".join(NORHAVEN)]))

    def play(rows: list[Any], **kwargs: Any) -> AgentExecutionEngine:
        engine = AgentExecutionEngine(
            "rllm/Search-v0",
            env_kwargs={"tasks": rows, **kwargs},
            sampler=ScriptedSampler(replies, per_conversation=True),
            n_parallel=16,
            retries=1,
        )
        episodes = engine.run_sync([0] * 32)
        assert len(episodes) == 32
        return engine

    assert play([FORMATS["musique"][0]]).stats.rewards == 32
    with served(answer) as (url, requests):
        assert play(QUESTION, corpus=url).stats.rewards == 32
    assert len(requests) == 64
    stats = play(QUESTION, corpus=url).stats
    assert stats.stop_reasons == {StopReason.FAULT.value: 32}
    assert (stats.faults["retrieval_server"], stats.dropped, stats.rewards) == (64, 32, 0)


def test_what_a_server_returned_is_kept_up_to_a_limit(monkeypatch):
    monkeypatch.setattr("rllm_gym.envs.search.env._MAX_FOUND_CHARS", 5_000)

    async def answer(request: Any) -> web.Response:
        return web.json_response(rllm([{"id": request["query"], "text": "word " * 300}]))

    with served(answer) as (url, _):
        env = SearchEnv(tasks=QUESTION, corpus=url)
        env.reset(seed=0)
        for query in ("one", "two", "three"):
            env.step(call("search", query=query))
        assert "There is no document 'one'" in env.step(call("read", id="one"))[0]
        assert "[three]\nword word" in env.step(call("read", id="three"))[0]
