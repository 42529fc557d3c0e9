"""verl's own agent loop worker runs our ids: a stub server returns the tokens, everything else is verl's."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="verl is not installed (tests/integrations/requirements/verl.txt)")
import gymnasium
import hydra
import numpy as np
import verl
import yaml
from transformers import AutoTokenizer
from verl import DataProto
from verl.experimental.agent_loop import AgentLoopBase, AgentLoopWorker
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput
from words import Words

from rllm_gym.integrations.verl import RllmGymAgentLoop, close_environments
from trainers.tiny_model import make_tiny_model

PROMPT_LENGTH, RESPONSE_LENGTH = 400, 120


gymnasium.register("tests/Words-v0", entry_point=Words)


class Server:
    """Replaces verl's ``LLMServerClient``: the same call, the tokens of a script with their own log-probs."""

    def __init__(self, tokenizer: Any, reply: Callable[[int, str], str]) -> None:
        self.tokenizer = tokenizer
        self.reply = reply
        self.calls: list[dict[str, Any]] = []
        self.turns: dict[str, int] = {}

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], priority: int = 0
    ) -> TokenOutput:
        turn = self.turns.get(request_id, 0)
        self.turns[request_id] = turn + 1
        self.calls.append({"id": request_id, "prompt": prompt_ids, "params": dict(sampling_params), "turn": turn})
        sampling_params.clear()  # as in verl's servers
        await asyncio.sleep(0)
        most = self.calls[-1]["params"]["max_tokens"]
        ids = self.tokenizer.encode(self.reply(turn, self.tokenizer.decode(prompt_ids)) + "<|end|>")[:most]
        return TokenOutput(
            token_ids=ids,
            log_probs=[logprob_of(prompt_ids + ids[: place + 1]) for place in range(len(ids))],
            stop_reason="completed",
            num_preempted=1,
            extra_fields={"global_steps": 7, "min_global_steps": 7, "max_global_steps": 7 + turn},
        )


def logprob_of(ids: list[int]) -> float:
    """A different value for every context, so that a shifted log-prob is detected."""
    return -(1 + hashlib.sha256(repr(ids).encode()).digest()[0]) / 256


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden_size=32, num_layers=1, num_heads=2)


def config_of(model_path: Path, loops: Path | None, *overrides: str) -> Any:
    folder = Path(verl.__file__).parent / "trainer" / "config"
    with hydra.initialize_config_dir(str(folder), version_base=None):
        return hydra.compose(
            "ppo_trainer",
            [
                f"actor_rollout_ref.model.path={model_path}",
                "actor_rollout_ref.rollout.name=vllm",
                "actor_rollout_ref.rollout.calculate_log_probs=true",
                f"actor_rollout_ref.rollout.prompt_length={PROMPT_LENGTH}",
                f"actor_rollout_ref.rollout.response_length={RESPONSE_LENGTH}",
                f"actor_rollout_ref.rollout.agent.agent_loop_config_path={loops or 'null'}",
                "actor_rollout_ref.rollout.agent.default_agent_loop=rllm_gym",
                *overrides,
            ],
        )


def play(
    model_path: Path,
    tmp_path: Path,
    tasks: list[str],
    reply: Callable[[int, str], str],
    *,
    validate: bool = False,
    repeats: int = 1,
    rows: list[dict[str, Any]] | None = None,
    listed: bool = True,
    **settings: Any,
) -> tuple[DataProto, Server]:
    """Run one batch through verl's worker, as its trainer sends it, with or without a list of agent loops."""
    loops = tmp_path / "agent_loops.yaml"
    loops.write_text(
        yaml.safe_dump(
            [
                {"name": "rllm_gym", "_target_": "rllm_gym.integrations.verl.RllmGymAgentLoop", "env": "tests/Words-v0"}
                | settings
            ]
        )
    )
    config = config_of(model_path, loops if listed else None)
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    server = Server(tokenizer, reply)

    async def go() -> DataProto:
        worker = AgentLoopWorker(config, server)
        extra = rows or [{"task_id": task} for task in tasks]
        batch = DataProto.from_dict(
            non_tensors={
                "raw_prompt": objects([[{"role": "user", "content": "unused"}]] * len(extra)),
                "extra_info": objects(extra),
                "index": np.arange(len(extra)),
            },
            meta_info={"validate": validate, "global_steps": 3},
        ).repeat(repeats, interleave=True)
        batch.non_tensor_batch["priority"] = np.arange(len(batch), dtype=np.int64)
        try:
            return await worker.generate_sequences(batch)
        finally:
            await close_environments()

    return asyncio.run(go()), server


def objects(values: list[Any]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


@pytest.fixture(autouse=True)
def fresh_words() -> None:
    Words.closed, Words.seen, Words.breaks = 0, [], {"words-5"}


def test_importing_the_agent_loop_registers_it(model_path: Path, tmp_path: Path) -> None:
    """verl finds it by its name; the first test, since verl keeps what a list of agent loops names."""
    rows = [{"task_id": "words-1", "env_id": "tests/Words-v0"}]
    batch, _ = play(model_path, tmp_path, [], lambda *_: "stop", rows=rows, listed=False)
    assert batch.non_tensor_batch["task_id"].tolist() == ["words-1"]
    assert issubclass(RllmGymAgentLoop, AgentLoopBase)


def test_several_turns(model_path: Path, tmp_path: Path) -> None:
    """Masks, log-probs, rewards and metrics that verl trains on are those of the tokens from its server."""
    says = ["one", "three", "stop now"]
    batch, server = play(model_path, tmp_path, ["words-1", "words-2"], lambda turn, _: says[turn], max_reply_tokens=20)
    tokenizer = server.tokenizer
    for row in range(2):
        calls = [call for call in server.calls if call["id"] == server.calls[row]["id"]]
        prompt = batch.batch["prompts"][row][batch.batch["attention_mask"][row, :PROMPT_LENGTH].bool()].tolist()
        first = next(call for call in server.calls if call["prompt"] == prompt)
        talk = [call for call in server.calls if call["id"] == first["id"]]
        assert len(talk) == len(calls) == 3
        length = int(batch.batch["attention_mask"][row, PROMPT_LENGTH:].sum())
        response = batch.batch["responses"][row, :length].tolist()
        mask = batch.batch["response_mask"][row].tolist()
        logprobs = batch.batch["rollout_log_probs"][row].tolist()
        sampled = [token for text in says for token in tokenizer.encode(text + "<|end|>")]
        assert [token for token, one in zip(response, mask, strict=False) if one] == sampled
        assert sum(mask) == len(sampled)
        assert sum(mask[length:]) == 0
        assert talk[2]["prompt"] == (prompt + response)[: len(talk[2]["prompt"])]
        for place, one in enumerate(mask):
            expected = logprob_of(prompt + response[: place + 1]) if one else 0.0
            assert logprobs[place] == pytest.approx(expected, abs=1e-6)
        scores = batch.batch["rm_scores"][row]
        assert scores.sum().item() == pytest.approx(0.03 + 0.05 + 0.08)
        assert scores[length - 1].item() == pytest.approx(scores.sum().item())
        assert batch.non_tensor_batch["turn_scores"][row] == pytest.approx([0.03, 0.05, 0.08])
        assert "say word" in tokenizer.decode(prompt)
        assert "unused" not in tokenizer.decode(prompt)
        assert tokenizer.decode(response).count("go on") == 2
    assert batch.non_tensor_batch["acc"].tolist() == [1.0, 1.0]
    assert batch.non_tensor_batch["left_out"].tolist() == [0.0, 0.0]
    assert batch.non_tensor_batch["__num_turns__"].tolist() == [6, 6]
    assert batch.non_tensor_batch["min_global_steps"].tolist() == [7, 7]
    assert batch.non_tensor_batch["max_global_steps"].tolist() == [9, 9]
    for metrics in batch.meta_info["metrics"]:
        assert metrics["generate_sequences"] > 0
        assert metrics["num_preempted"] == 3
    assert all(call["params"]["logprobs"] is True for call in server.calls)
    assert Words.closed >= 1


def test_verls_sampling_options_are_passed_to_the_server(model_path: Path, tmp_path: Path) -> None:
    """Sampling options of verl, for training and for validation, are passed to its server; replies stop where the
    template ends a turn.
    """
    _, server = play(model_path, tmp_path, ["words-1"], lambda *_: "stop")
    assert server.calls[0]["params"]["temperature"] == 1.0
    _, server = play(model_path, tmp_path, ["words-1"], lambda *_: "stop", validate=True, max_reply_tokens=9)
    params = server.calls[0]["params"]
    assert params["temperature"] == 0
    assert params["max_tokens"] == 9
    assert params["stop_token_ids"] == [server.tokenizer.convert_tokens_to_ids("<|end|>")]


def test_repeats_share_the_task_and_have_different_dynamics(model_path: Path, tmp_path: Path) -> None:
    def seen(seed: int) -> list[tuple[str, int]]:
        Words.seen = []
        play(model_path, tmp_path, ["words-1", "words-2"], lambda *_: "stop", repeats=3, seed=seed)
        return sorted(Words.seen)

    first = seen(0)
    assert [task for task, _ in first] == ["words-1"] * 3 + ["words-2"] * 3
    assert len({rng for _, rng in first}) == 6
    assert seen(0) == first
    assert {rng for _, rng in seen(1)}.isdisjoint({rng for _, rng in first})


def test_the_response_is_limited_to_verls_tensors(model_path: Path, tmp_path: Path) -> None:
    """However long the replies, the response is never longer than verl's tensors, and no sampled token is cut off
    silently.
    """
    batch, server = play(
        model_path,
        tmp_path,
        ["words-1"],
        lambda *_: "a word and " * 12,
        env_kwargs={"talkative": 30},
        max_reply_tokens=50,
    )
    length = int(batch.batch["attention_mask"][0, PROMPT_LENGTH:].sum())
    assert length <= RESPONSE_LENGTH
    drawn = sum(
        len(server.tokenizer.encode("a word and " * 12 + "<|end|>")[: call["params"]["max_tokens"]])
        for call in server.calls
    )
    assert int(batch.batch["response_mask"].sum()) == drawn
    assert batch.non_tensor_batch["stop_reason"][0] == "context_length"
    assert batch.non_tensor_batch["left_out"][0] == 0


def test_an_environment_fault_gives_no_training_signal(model_path: Path, tmp_path: Path) -> None:
    """Nothing of an episode with a fault is trained on, and it is marked; the others of the batch continue."""
    batch, _ = play(model_path, tmp_path, ["words-5", "words-1"], lambda *_: "stop", retries=1)
    assert batch.batch["response_mask"][0].sum() == 0
    assert batch.non_tensor_batch["left_out"].tolist() == [1.0, 0.0]
    assert "the environment is gone" in batch.non_tensor_batch["fault"][0]
    assert batch.batch["rm_scores"].sum(1).tolist() == pytest.approx([0.0, 0.04])
    assert [task for task, _ in Words.seen].count("words-5") == 2
    with pytest.raises(RuntimeError, match="the environment is gone"):
        play(model_path, tmp_path, ["words-5"], lambda *_: "stop", retries=0, on_fault="raise")


def test_a_prompt_that_does_not_fit_is_skipped(model_path: Path, tmp_path: Path) -> None:
    batch, server = play(model_path, tmp_path, ["words-1"], lambda *_: "stop", env_kwargs={"talkative": PROMPT_LENGTH})
    assert server.calls == []
    assert batch.non_tensor_batch["left_out"].tolist() == [1.0]
    assert batch.non_tensor_batch["stop_reason"].tolist() == ["prompt_too_long"]


@pytest.mark.parametrize("env_id", ["rllm/FrozenLake-v0", "rllm/Math-v0"])
def test_ids_named_by_rows(env_id: str, model_path: Path, tmp_path: Path) -> None:
    """A data set may mix environments; the agent of the family provides the system prompt."""
    env = gymnasium.make(env_id)
    rows = [{"task_id": env.unwrapped.tasks[index].task_id, "env_id": env_id} for index in range(2)]
    batch, server = play(model_path, tmp_path, [], lambda *_: "\\boxed{1}", rows=rows, max_turns=2, max_reply_tokens=20)
    assert batch.non_tensor_batch["left_out"].tolist() == [0.0, 0.0]
    assert batch.non_tensor_batch["task_id"].tolist() == [row["task_id"] for row in rows]
    assert "<|system|>" in server.tokenizer.decode(server.calls[0]["prompt"])


@pytest.mark.parametrize(
    ("settings", "rows", "message"),
    [
        ({}, [{"question": "?"}], "names no task"),
        ({"env": None}, [{"task_id": "words-1"}], "names an environment"),
        ({"max_turn": 3}, None, "no argument max_turn"),
        ({"on_fault": "ignore"}, None, "must be 'mask' or 'raise'"),
        ({"agent_kwargs": {"a": 1}}, None, "need agent="),
        ({"agent": "rllm_gym.agents:ChatAgent", "agent_kwargs": {"history": "latest"}}, None, "rewrote its history"),
    ],
)
def test_invalid_settings_are_errors_that_name_them(
    settings: dict[str, Any], rows: list[dict[str, Any]] | None, message: str, model_path: Path, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=message):
        play(model_path, tmp_path, ["words-1"], lambda *_: "word", rows=rows, **settings)


def test_the_stub_has_the_signature_of_verls_client() -> None:
    """The call that the agent loop makes is accepted by verl's own client."""
    inspect.signature(LLMServerClient.generate).bind(None, "1", prompt_ids=[1], sampling_params={}, priority=3)
