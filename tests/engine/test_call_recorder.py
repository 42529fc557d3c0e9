"""What a program sends as chat requests becomes one trajectory with exactly the tokens that were sampled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rllm_gym.chat_server import ChatReply, ChatRequest, RequestError
from rllm_gym.core import Episode, StopReason
from rllm_gym.engine import AgentWorkflowEngine, Workflow, WorkflowContext
from rllm_gym.engine.call_recorder import CallRecorder
from rllm_gym.samplers import Completion, SamplingParams, SamplingRequest, ScriptedSampler
from tests.chat.templates import make_tokenizer

TOKENIZER = make_tokenizer("qwen2.5")
END = TOKENIZER.convert_tokens_to_ids("<|im_end|>")
CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "%d"}}\n</tool_call>'
TOOLS = json.dumps([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}])


@dataclass
class Sampled:
    """Every request to the sampler, and the ids of its reply: one per character, as no encoder would choose them."""

    calls: bool = False
    prompts: list[tuple[int, ...]] = field(default_factory=list)
    replies: list[tuple[int, ...]] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)

    def __call__(self, request: SamplingRequest) -> Completion:
        number = len(self.replies)
        text = CALL % number if self.calls else f"reply number {number}"
        ids = (*(TOKENIZER.encode(letter, add_special_tokens=False)[0] for letter in text), END)
        self.prompts.append(request.ids)
        self.replies.append(ids)
        self.params.append(request.params)
        return Completion(ids, (-0.5,) * len(ids), text)


class Calls(Workflow):
    """Performs the operations of a plan on conversations, as a program might."""

    def __init__(self, plan: Sequence[tuple[str, int, int]], tools: str) -> None:
        self.plan, self.tools = plan, tools
        self.conversations: list[list[dict[str, Any]]] = []
        self.sent: list[list[dict[str, Any]]] = []

    async def run(self, task: Any, context: WorkflowContext) -> Episode:
        recorder = CallRecorder(context, "agent")
        await self.perform(recorder.respond)
        return recorder.episode(reward=1.0, success=True, stop_reason=StopReason.SUCCESS, info={})

    async def perform(self, respond: Callable[[ChatRequest], Awaitable[ChatReply]]) -> None:
        for step, (what, which, where) in enumerate(self.plan):
            messages = self._messages(what, which, where)
            many = 2 if what == "twice" else 1
            asked = [[*messages, {"role": "user", "content": f"question {step}.{index}"}] for index in range(many)]
            for conversation in asked:
                self.sent.append([dict(message) for message in conversation])
            requests = [ChatRequest(tuple(conversation), self.tools) for conversation in asked]
            replies = await asyncio.gather(*(respond(request) for request in requests))
            for conversation, reply in zip(asked, replies, strict=True):
                # As the OpenAI SDK sends a message back: with further fields, and null for no content.
                conversation.append({**reply.message, "refusal": None})
                for call in reply.message.get("tool_calls") or ():
                    conversation.append({"role": "tool", "tool_call_id": call["id"], "content": f"seen {step}"})
                self.conversations.append(conversation)

    def _messages(self, what: str, which: int, where: int) -> list[dict[str, Any]]:
        if what == "new" or not self.conversations:
            return [{"role": "system", "content": f"system {which % 2}"}]
        chosen = [dict(message) for message in self.conversations[which % len(self.conversations)]]
        if what == "cut":
            return chosen[: 1 + where % len(chosen)]
        if what == "edit":
            chosen[where % len(chosen)] |= {"content": f"rewritten {where}"}
        if what == "drop" and len(chosen) > 1:
            del chosen[1 + where % (len(chosen) - 1)]
        return chosen


PLANS = st.lists(
    st.tuples(
        st.sampled_from(["go on", "go on", "twice", "new", "cut", "edit", "drop"]), st.integers(0, 9), st.integers(0, 9)
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=40)
@given(plan=PLANS, tools=st.booleans())
def test_every_reply_is_trained_on_once_after_the_tokens_it_was_sampled_after(
    plan: list[tuple[str, int, int]], tools: bool
) -> None:
    sampled = Sampled(calls=tools)
    workflow = Calls(plan, TOOLS if tools else "")
    engine = AgentWorkflowEngine(workflow, sampler=ScriptedSampler(sampled, TOKENIZER))
    (episode,) = engine.run_sync([None])
    assert episode.fault is None
    (trajectory,) = episode.trajectories
    assert len(trajectory.steps) == len(sampled.replies) == len(workflow.sent)
    found = []
    for sequence in trajectory.branches():
        starts = [i for i in range(len(sequence)) if sequence.mask[i] and not (i and sequence.mask[i - 1])]
        for start in starts:
            end = next((i for i in range(start, len(sequence)) if not sequence.mask[i]), len(sequence))
            found.append((sequence.ids[:start], sequence.ids[start:end]))
    assert sorted(found) == sorted(zip(sampled.prompts, sampled.replies, strict=True))
    assert sum(sum(sequence.rewards) for sequence in trajectory.branches()) == trajectory.reward == 1.0


@settings(max_examples=25)
@given(plan=PLANS)
def test_a_prompt_is_what_the_program_sent_and_unchanged_replies_keep_their_ids(
    plan: list[tuple[str, int, int]],
) -> None:
    sampled = Sampled()
    workflow = Calls(plan, "")
    AgentWorkflowEngine(workflow, sampler=ScriptedSampler(sampled, TOKENIZER)).run_sync([None])
    # Requests of one `gather` may be sampled in another order.
    by_text = {TOKENIZER.decode(prompt): prompt for prompt in sampled.prompts}
    for messages in workflow.sent:
        plain = [{"role": message["role"], "content": message["content"] or ""} for message in messages]
        text = TOKENIZER.apply_chat_template(plain, tokenize=False, add_generation_prompt=True)
        assert text in by_text
        for index, message in enumerate(plain):
            if message["role"] == "assistant" and message["content"].startswith("reply number"):
                head = TOKENIZER.apply_chat_template(plain[:index], tokenize=False, add_generation_prompt=True)
                number = int(message["content"].split()[-1])
                if head == TOKENIZER.decode(sampled.prompts[number]):
                    before = (*sampled.prompts[number], *sampled.replies[number])
                    assert by_text[text][: len(before)] == before


def test_a_conversation_that_goes_on_is_one_sequence() -> None:
    workflow = Calls([("new", 0, 0), ("go on", 0, 0), ("go on", 1, 0)], "")
    (episode,) = AgentWorkflowEngine(workflow, sampler=ScriptedSampler(Sampled(), TOKENIZER)).run_sync([None])
    assert len(episode.trajectories[0].branches()) == 1


class Asks(Workflow):
    """Sends one request after another and notes what it gets."""

    def __init__(self, *requests: ChatRequest) -> None:
        self.requests = requests
        self.got: list[Any] = []

    async def run(self, task: Any, context: WorkflowContext) -> Episode:
        recorder = CallRecorder(context, "agent")
        for request in self.requests:
            try:
                self.got.append(await recorder.respond(request))
            except RequestError as error:
                self.got.append(error)
        return recorder.episode(reward=0.0, success=False, stop_reason=StopReason.FAILURE, info={})


def ask(text: str, **fields: Any) -> ChatRequest:
    return ChatRequest(({"role": "user", "content": text},), **fields)


def test_the_engines_sampling_parameters_apply() -> None:
    """Log-probs of another temperature could not be trained on; a shorter reply and stop texts can."""
    sampled = Sampled()
    workflow = Asks(ask("a", temperature=0.0, top_p=0.1, max_tokens=5, stop=("x",)), ask("b", max_tokens=9_999))
    params = SamplingParams(temperature=0.7, max_tokens=100, stop_token_ids=(END,))
    AgentWorkflowEngine(workflow, sampler=ScriptedSampler(sampled, TOKENIZER), sampling_params=params).run_sync([None])
    assert sampled.params == [replace(params, max_tokens=5, stop=("x",)), params]


def test_limits_and_messages_that_no_template_takes_are_errors_of_the_request() -> None:
    limited = Asks(ask("a"), ask("b"), ask("c"))
    engine = AgentWorkflowEngine(limited, sampler=ScriptedSampler(Sampled(), TOKENIZER), max_turns=2)
    (episode,) = engine.run_sync([None])
    assert [type(got).__name__ for got in limited.got] == ["ChatReply", "ChatReply", "RequestError"]
    assert limited.got[2].code == "context_length_exceeded"
    assert len(episode.trajectories[0].steps) == 2
    strict = Asks(ChatRequest(({"role": "user", "content": "a"}, {"role": "tool", "content": "b"})), ask("c"))
    renders = make_tokenizer("llama3")
    AgentWorkflowEngine(strict, sampler=ScriptedSampler(lambda request: "yes", renders)).run_sync([None])
    assert type(strict.got[1]).__name__ == "ChatReply", "a request that cannot be rendered leaves the others"
