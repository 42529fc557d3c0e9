r"""The environment of questions that are answered by searching a collection of documents."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal

from rllm_gym.argument_checks import check_int, check_number
from rllm_gym.core import AsyncTextEnv, EnvironmentFault, InvalidAction, Outcome, Task, TaskError, TaskSource
from rllm_gym.envs.question import QuestionEnv
from rllm_gym.envs.search.built_in_corpus import build_corpus
from rllm_gym.envs.search.corpus import Document, LocalCorpus, QueryRefused, open_corpus
from rllm_gym.envs.search.questions import search_tasks
from rllm_gym.envs.search.retrieval_server import RetrievalServer
from rllm_gym.envs.search.rows import SearchRowParser, SearchTask, read_task
from rllm_gym.envs.search.tools import (
    EXAMPLE,
    MAX_RESULTS,
    ReadCall,
    SearchCall,
    document_text,
    parse_call,
    results_text,
    tool_lines,
    tools,
)
from rllm_gym.envs.task_selection import choose_tasks
from rllm_gym.grading.short_text import exact_match, f1_score
from rllm_gym.parsing.boxed import last_boxed, strip_thinking
from rllm_gym.parsing.tool_calls import parse_tool_calls

MAX_CALLS = 8
MIN_RESULT_CHARS = 300
MIN_OBSERVATION_CHARS = 10_000

_EXTRACTED_CHARS = 1_000
_TIMEOUT_S = 30.0
_MAX_FOUND_CHARS = 50_000_000  # more than one response can have
_FOUND_CHARS = 1_000  # memory of a document besides its text, as so many characters
_MAX_CITATIONS = 100
_LATEX_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mbox)\s*\{([^{}]*)\}")
_LATEX_ESCAPE = re.compile(r"\\([%$&#_{} ])")
_CITATION = re.compile(r"\[([^\[\]\n]{1,300})\]")


class SearchEnv(QuestionEnv, AsyncTextEnv):
    r"""Answer a question by searching a collection of documents.

    ## Description
    The built-in questions need one to four articles of a generated encyclopedia
    (:mod:`rllm_gym.envs.search.built_in_corpus`): persons, towns, works, structures, institutions and events with
    invented names, so that no model knows an answer. *Bridge* questions follow relations, *comparison* questions
    compare two entities first, and *intersection* questions have two conditions that only one entity meets. Every
    question has exactly one answer in its collection, and no two splits share a question or an article. Rows of
    HotpotQA, 2WikiMultihopQA, MuSiQue and BrowseComp-Plus are searched in their own paragraphs or in a collection of
    your own: a file, or a retrieval server. Files and rows are searched with BM25 (the library ``bm25s``).

    ## Action space
    Any text. A reply calls tools, with ``<tool_call>{"name": "search", "arguments": {"query": "…"}}</tool_call>`` or in
    any other notation that models are trained with (:func:`rllm_gym.parsing.tool_calls.parse_tool_calls`), up to eight
    times at once; or it gives the answer in the last ``\boxed{}`` after the last closed ``</think>``. A reply with a
    call gives no answer. ``search(query, k)`` returns ids, titles and the beginnings of texts; ``read(id, start)``
    returns a document, a long one in parts. Documents are cited in the reply with the answer, as ``[id]``.

    ## Observation space
    Text. First the question, the tools, the answer format and the number of turns; then the results of the calls; then
    whether the answer was right. The right answer is never shown.

    ## Starting state
    One task, chosen by ``options={"task": index | task_id | Task}``, else drawn with the seed. Nothing else is random.

    ## Rewards
    ``answer``: with ``reward="exact"``, 1 for an answer that equals a right one in the normalization of SQuAD and
    HotpotQA (case, punctuation, articles, spaces), else 0; with ``reward="f1"``, the F1 of its words. With
    ``citation_reward``, ``citations``: that weight times ``answer`` times the F1 of the cited documents and those that
    support the answer, so that citations alone gain nothing. Calls give 0. A reply with neither an answer nor
    well-formed calls costs ``invalid_action_penalty``. A search without result, an unknown id and a query that the
    retrieval server refuses are reported to the model and cost nothing. If the server fails, also with another
    query, an :class:`~rllm_gym.core.EnvironmentFault` is raised, and no reward is given.

    ## Episode end
    Terminates with the answer: ``success`` if it is an exact match, else ``failure``. Truncated (``max_turns``) when no
    turns are left.

    ## Information
    The keys of :class:`~rllm_gym.core.TextEnv`, and ``extracted: str``, the graded answer (its first 1,000 characters;
    ``""`` until then), ``tools_called: int``, the number of calls in the episode so far, ``exact_match: float`` and
    ``f1: float`` of the answer, ``citation_precision: float`` and ``citation_recall: float`` (0 until the answer, and
    where the supporting documents are not known). ``tools`` from ``reset`` contains the schemas of the tools.

    ## Arguments

    >>> import gymnasium as gym, rllm_gym
    >>> env = gym.make("rllm/Search-v0", families=["bridge"], difficulty=2)
    >>> observation, info = env.reset(seed=0)
    >>> call = '<tool_call>{"name": "search", "arguments": {"query": "the first mayor of Oslo"}}</tool_call>'
    >>> observation, reward, *_ = env.step(call)
    >>> observation[:9], reward
    ('Result:\n[', 0.0)

    Args:
        tasks: ``None`` for the built-in questions; ``"path.jsonl"``, ``"path.parquet"``,
            ``"hf:repo[:config][@split]"``, a list of rows or tasks, or a :class:`~rllm_gym.data.Taskset`. Rows have
            ``question`` (or ``query``) and ``answer`` (or ``answers``, ``golden_answers``), with optional
            ``answer_aliases``, and the documents to search as ``documents`` (``id``, ``title``, ``text``), or as in
            HotpotQA, 2WikiMultihopQA (``context``, ``supporting_facts``), MuSiQue (``paragraphs``) and BrowseComp-Plus
            (``evidence_docs``, ``gold_docs``, ``negative_docs``); ``supporting`` lists ids.
        families: Built-in questions to draw from: ``"bridge"``, ``"comparison"``, ``"intersection"``; ``None`` for all.
        difficulty: Of built-in questions: the number of articles that are needed, 1 to 4, a pair ``(lowest,
            highest)``, or ``None`` for all; 0, which has to be asked for, needs one of twelve very short articles.
        split: ``"train"``, ``"validation"`` or ``"test"``; ``None`` means ``"train"`` for built-in questions and every
            row of a file.
        task_seed: A different seed gives different built-in questions.
        num_tasks: Number of tasks: the first rows of a file, or built-in questions (1,000,000 by default).
        corpus_size: Number of articles of each built-in collection, 12 to 2,000; ``None`` for 160, or 12 at difficulty
            0. With few articles there are not questions of every kind.
        corpus: The collection to search for ``tasks``, instead of the documents in the rows: a path to JSON lines or
            Parquet, ``"hf:…"`` or rows, with ``id``, ``title`` and ``text`` (or ``contents``); at most 500 million
            characters; or the URL of a retrieval server (``POST /retrieve``, as of Search-R1 and rLLM), which
            finds documents, but ``read`` returns only what was found before.
        reward: ``"exact"`` or ``"f1"``.
        citation_reward: Weight of the citations; 0 for none. Otherwise tasks must name their supporting documents.
        top_k: Number of results of a search that gives none, 1 to 20.
        snippet_chars: Length of the text in each result, 20 to 5,000.
        max_result_chars: Longest result of a call in an observation, at least 300.
        tools_in_prompt: Whether the first observation lists the tools. Not needed if the agent's chat template renders
            ``info["tools"]``.
        search_timeout: Time limit in seconds for a request to a retrieval server; ``None`` for 30.
        max_turns: Number of replies.
        invalid_action_penalty: Subtracted from the reward for a reply with neither an answer nor well-formed calls.
        max_observation_chars: Bound of the observation space, at least 10,000.
        max_action_chars: Longest accepted reply.
        render_mode: ``"ansi"`` (the question, replies and observations) or ``None``.

    Raises:
        ModuleNotFoundError: The extra is missing: ``pip install 'rllm-gym[search]'``.
        TaskError: The tasks or the corpus are unusable; the message names the file, the row and a solution.
        ValueError: Another argument is out of range.

    ## Version history
    v0: first release.
    """

    bound_to_loop: ClassVar[bool] = False  # connections are made per request

    def __init__(
        self,
        *,
        tasks: str | os.PathLike[str] | Iterable[Mapping[str, Any] | Task] | TaskSource | None = None,
        families: str | Iterable[str] | None = None,
        difficulty: int | tuple[int, int] | None = None,
        split: str | None = None,
        task_seed: int = 0,
        num_tasks: int | None = None,
        corpus_size: int | None = None,
        corpus: str | os.PathLike[str] | Iterable[Mapping[str, Any]] | None = None,
        reward: Literal["exact", "f1"] = "exact",
        citation_reward: float = 0.0,
        top_k: int = 5,
        snippet_chars: int = 200,
        max_result_chars: int = 4_000,
        tools_in_prompt: bool = True,
        search_timeout: float | None = None,
        max_turns: int = 12,
        invalid_action_penalty: float = 0.0,
        max_observation_chars: int = 100_000,
        max_action_chars: int = 1_000_000,
        render_mode: str | None = None,
    ) -> None:
        _need("bm25s", "aiohttp")
        if reward not in ("exact", "f1"):
            raise ValueError(f"reward={reward!r} is not one of 'exact', 'f1'")
        if not isinstance(tools_in_prompt, bool):
            raise ValueError(f"tools_in_prompt={tools_in_prompt!r} must be True or False")
        if not check_number("citation_reward", citation_reward, least=0) < float("inf"):
            raise ValueError(f"citation_reward={citation_reward!r} must be a finite number")
        for name, value, high in (("top_k", top_k, MAX_RESULTS), ("snippet_chars", snippet_chars, 5_000)):
            if check_int(name, value, 20 if name == "snippet_chars" else 1) > high:
                raise ValueError(f"{name}={value!r} must be at most {high}")
        self.max_result_chars = check_int("max_result_chars", max_result_chars, MIN_RESULT_CHARS)
        check_int("max_observation_chars", max_observation_chars, MIN_OBSERVATION_CHARS)
        if tasks is None and corpus is not None:
            raise TaskError("corpus= has no effect on the built-in questions, which have their own; set tasks= as well")
        if tasks is not None and corpus_size is not None:
            raise TaskError(
                f"corpus_size={corpus_size!r} is of the built-in questions; it cannot be combined with tasks="
            )
        super().__init__(
            tasks=choose_tasks(
                partial(search_tasks, articles=corpus_size),
                SearchRowParser(corpus is not None),
                "search",
                tasks,
                families,
                difficulty,
                split,
                task_seed,
                num_tasks,
            ),
            max_turns=max_turns,
            invalid_action_penalty=invalid_action_penalty,
            max_observation_chars=max_observation_chars,
            max_action_chars=max_action_chars,
            render_mode=render_mode,
        )
        self._given_corpus = _corpus(corpus, search_timeout)
        # If a search of a reply is late, a fixed one tells whether the server still answers.
        self.max_step_s = 2 * MAX_CALLS * (search_timeout or _TIMEOUT_S)
        self._exact, self._citation_reward = reward == "exact", citation_reward
        self._top_k, self._snippet_chars, self._tools_in_prompt = top_k, snippet_chars, tools_in_prompt

    # Episode

    def _question(self, task: Task) -> str:
        self._search_task = read_task(task, corpus=self._given_corpus is not None)
        given = self._given_corpus
        self._corpus = _own_corpus(self._search_task, task.task_id) if given is None else given
        self._found: dict[str, Document] = {}
        self._called = 0
        if self._citation_reward:
            self._check_supporting()
        several = f"up to {MAX_CALLS} in one reply"
        listed = f"Tools:\n{tool_lines(self._top_k)}\n" if self._tools_in_prompt else ""
        cite = " Cite the documents that it is based on in the same reply, as [id]." if self._citation_reward else ""
        turns = f"You have {self.max_turns} turn{'s' * (self.max_turns > 1)}; the answer ends the task."
        return (
            f"{task.content}\n\nSearch the documents for what you need. {listed}Call tools with {EXAMPLE}, {several}. "
            f"When you know the answer, give it alone in \\boxed{{}}.{cite} {turns}"
        )

    def _check_supporting(self) -> None:
        supporting = self._search_task.supporting
        if not supporting:
            raise TaskError(
                f"task {self.task.task_id!r} does not name its supporting documents, so citation_reward="
                f"{self._citation_reward} has no effect; add 'supporting' (a list of ids), or set it to 0"
            )
        if isinstance(self._corpus, LocalCorpus):
            unknown = [one for one in supporting if self._corpus.find(one) is None]
            if unknown:
                raise TaskError(f"task {self.task.task_id!r}: its supporting {unknown!r:.200} are not in the corpus")

    async def _async_act(self, action: str) -> Outcome:
        calls = parse_tool_calls(action).calls
        if len(calls) > MAX_CALLS:
            raise InvalidAction(
                f"The reply has {len(calls)} tool calls, and at most {MAX_CALLS} are taken; no call was made."
            )
        if not calls:
            return self._answered(action)
        parsed = [parse_call(call, number, self._top_k) for number, call in enumerate(calls, 1)]
        many = len(parsed)
        longest = self.observation_space.max_length  # type: ignore[attr-defined]
        chars = min(self.max_result_chars, longest // many - 60)
        running = [asyncio.ensure_future(self._result(call, chars)) for call in parsed]
        try:
            texts = await asyncio.gather(*running)
        finally:
            for one in running:
                one.cancel()  # a fault of one call ends the episode
        self._called += many
        heads = [f"Result{f' {number} of {many}' * (many > 1)}:" for number in range(1, many + 1)]
        return Outcome("\n\n".join(f"{head}\n{text}" for head, text in zip(heads, texts)), {"answer": 0.0})

    async def _result(self, call: SearchCall | ReadCall, chars: int) -> str:
        try:
            if isinstance(call, ReadCall):
                return self._read(call, chars)
            if isinstance(self._corpus, LocalCorpus):
                documents = self._corpus.search(call.query, call.k)
            else:
                documents = await self._corpus.search(call.query, call.k)
                self._keep(documents)
        except QueryRefused as error:
            return f"(failed) {str(error)[0].upper()}{str(error)[1:chars]}."
        except TaskError as error:
            raise EnvironmentFault(f"the corpus of task {self.task.task_id!r}: {error}", kind="corpus") from error
        return results_text(documents, snippet_chars=self._snippet_chars, max_chars=chars)

    def _read(self, call: ReadCall, chars: int) -> str:
        document = self._corpus.find(call.id) if isinstance(self._corpus, LocalCorpus) else self._found.get(call.id)
        if document is None:
            return f"(failed) There is no document {call.id!r:.80}; ids are in the results of search."
        return document_text(document, call.start, chars)

    def _keep(self, documents: Sequence[Document]) -> None:
        """Keep the results of a server for ``read``, and remove the oldest if they are too long together."""
        for document in documents:
            self._found.pop(document.id, None)
            self._found[document.id] = document
        chars = sum(len(document.text) + _FOUND_CHARS for document in self._found.values())
        for document in list(self._found.values()):
            if chars <= _MAX_FOUND_CHARS:
                break
            chars -= len(document.text) + _FOUND_CHARS
            del self._found[document.id]

    def _answered(self, reply: str) -> Outcome:
        answer = _answer_of(reply)
        if answer is None:
            raise InvalidAction("There is no answer: the reply has no \\boxed{} with text. Nor does it call a tool.")
        gold = self._search_task.answers
        exact, f1 = exact_match(answer, gold), f1_score(answer, gold)
        precision, recall = _citation_scores(reply, self._search_task.supporting)
        rewards = {"answer": exact if self._exact else f1}
        if self._citation_reward:
            harmonic = 2 * precision * recall / (precision + recall) if precision else 0.0
            rewards["citations"] = self._citation_reward * rewards["answer"] * harmonic
        info = {
            "extracted": answer[:_EXTRACTED_CHARS],
            "exact_match": exact,
            "f1": f1,
            "citation_precision": precision,
            "citation_recall": recall,
        }
        feedback = "Correct." if exact else "That is not correct."
        return Outcome(feedback, rewards, terminated=True, success=exact == 1, info=info)

    def _tools(self) -> str:
        return json.dumps(tools(self._top_k))

    def _add_info(self, info: dict[str, Any]) -> None:
        info["tools_called"] = self._called
        info["extracted"] = ""  # the outcome of a graded answer overwrites these
        for key in ("exact_match", "f1", "citation_precision", "citation_recall"):
            info[key] = 0.0

    @property
    def calls_made(self) -> int:
        """Number of tool calls in this episode."""
        return self._called

    def _env_state(self) -> dict[str, Any]:
        found = [[document.id, document.title, document.text] for document in self._found.values()]
        return super()._env_state() | {"called": self._called, "found": found}

    def _restore_env_state(self, state: dict[str, Any]) -> None:
        super()._restore_env_state(state)
        self._called = int(state["called"])
        self._found = {name: Document(name, title, text) for name, title, text in state["found"]}


def _need(*modules: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f"rllm/Search-v0 needs {' and '.join(missing)}: pip install 'rllm-gym[search]'", name=missing[0]
        )


def _corpus(source: Any, timeout: float | None) -> LocalCorpus | RetrievalServer | None:
    if isinstance(source, str) and source.startswith(("http://", "https://")):
        timeout = _TIMEOUT_S if timeout is None else check_number("search_timeout", timeout, above=0)
        if timeout == float("inf"):
            raise ValueError("search_timeout=inf must be a finite number of seconds")
        return RetrievalServer(source, timeout)
    if timeout is not None:
        raise ValueError(f"search_timeout={timeout!r} is of a retrieval server; corpus={source!r:.80} is no URL")
    return None if source is None else open_corpus(source)


def _own_corpus(task: SearchTask, task_id: str) -> LocalCorpus:
    try:
        if task.corpus_seed is not None:
            return _built_in_corpus(task.corpus_seed, task.articles, task.fillers)
        return _row_corpus(task.documents)
    except TaskError as error:
        raise TaskError(f"task {task_id!r}: {error}") from error


@lru_cache(maxsize=32)
def _built_in_corpus(seed: int, articles: int, fillers: bool) -> LocalCorpus:
    return LocalCorpus(build_corpus(seed, articles).articles(fillers=fillers))


@lru_cache(maxsize=8)
def _row_corpus(documents: tuple[Document, ...]) -> LocalCorpus:
    return LocalCorpus(documents)


def _answer_of(reply: str) -> str | None:
    r"""Return the answer in the last ``\boxed{}``, without LaTeX's markup of text; ``None`` if there is none."""
    answer = last_boxed(reply)
    if answer is None:
        return None
    plain = _LATEX_ESCAPE.sub(r"\1", _LATEX_TEXT.sub(r"\1", answer)).strip(" $")
    return plain or None


def _citation_scores(reply: str, supporting: Sequence[str]) -> tuple[float, float]:
    """Return precision and recall of the documents that the reply cites."""
    text = strip_thinking(reply) or ""
    cited: dict[str, None] = {}
    for mark in _CITATION.finditer(text):
        parts = [mark[1]] if mark[1] in supporting else mark[1].split(",")
        cited.update((part.strip(), None) for part in parts)
        if len(cited) > _MAX_CITATIONS:
            return 0.0, 0.0
    right = len(cited.keys() & set(supporting))
    return (right / len(cited), right / len(set(supporting))) if right else (0.0, 0.0)
