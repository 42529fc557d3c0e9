"""Named weights: each request is sampled with the weights it names, whatever else is served and synced meanwhile."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from samplers.conftest import qwen

from rllm_gym.samplers import Completion, SamplingParams, SamplingRequest, ScriptedSampler, TorchSampler, WeightUpdate

PROMPTS = [tuple(range(3 + number, 20 + 3 * number)) for number in range(6)]


def adapted(seed: int, names: Sequence[str] = ("default",), base: Any = None) -> Any:
    """Return a PEFT model whose adapters change its output strongly."""
    model = get_peft_model(
        base or qwen(), LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"), names[0]
    )
    for name in names[1:]:
        model.add_adapter(name, model.peft_config[names[0]])
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
    return model


def lora(model: Any, name: str = "", adapter: str = "default") -> WeightUpdate:
    tensors = get_peft_model_state_dict(model, adapter_name=adapter)
    return WeightUpdate(list(tensors.items()), "lora", model.peft_config[adapter].to_dict(), name=name)


def full(model: Any, name: str = "") -> WeightUpdate:
    return WeightUpdate(list(model.state_dict().items()), name=name)


def requests(*weights: str, conversation: str = "") -> list[SamplingRequest]:
    return [
        SamplingRequest(
            ids, SamplingParams(max_tokens=12), seed=number, weights=name, conversation=conversation and f"{name}"
        )
        for number, ids in enumerate(PROMPTS)
        for name in weights
    ]


def check(
    completions: Sequence[Completion], asked: Sequence[SamplingRequest], models: dict[str, Any], plain: Any
) -> None:
    """Assert that each completion has the log-probs of the model that its request names."""
    assert len(completions) == len(asked)
    for request, completion in zip(asked, completions, strict=True):
        expected = plain(models[request.weights], request.ids, completion.ids)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4), request.weights


@pytest.mark.parametrize("deterministic", [False, True])
def test_requests_of_one_call_use_the_weights_they_name(
    tokenizer: Any, run: Any, plain_logprobs: Any, deterministic: bool
) -> None:
    solver, judge, old = adapted(1), adapted(2), qwen(7)
    models = {"": qwen(), "solver": solver, "judge": judge, "old": old}

    async def go() -> None:
        async with TorchSampler(qwen(), tokenizer, max_batch=8, deterministic=deterministic) as sampler:
            versions = [await sampler.sync_weights(update) for update in (lora(solver, "solver"), lora(judge, "judge"))]
            versions.append(await sampler.sync_weights(full(old, "old")))
            assert (versions, sampler.weight_version) == ([1, 2, 3], 3)
            asked = requests("", "solver", "judge", "old", conversation="yes")
            got = await sampler.sample(asked)
            check(got, asked, models, plain_logprobs)
            assert {(r.weights, c.weight_version) for r, c in zip(asked, got, strict=True)} == {
                ("", 0), ("solver", 1), ("judge", 2), ("old", 3)
            }  # fmt: skip
            # The next turn of a conversation uses its own cache, and no other's.
            again = [
                SamplingRequest((*r.ids, *c.ids, 5, 6), r.params, r.seed + 1, r.conversation, weights=r.weights)
                for r, c in zip(asked, got, strict=True)
            ]
            check(await sampler.sample(again), again, models, plain_logprobs)

    run(go())


def test_a_weight_sync_changes_only_the_weights_of_its_name(tokenizer: Any, run: Any, plain_logprobs: Any) -> None:
    """With every order of full updates and adapters, with a name and without one."""
    first, second, third, complete, other = adapted(1), adapted(2), adapted(3), qwen(5), qwen(6)
    on_full_base = adapted(2, base=copy.deepcopy(complete))
    asked = requests("", "a", "b", "base")
    nothing = WeightUpdate((), "lora", {"r": 1}, name="base")

    async def go() -> None:
        async with TorchSampler(qwen(), tokenizer, max_batch=16) as sampler:
            models: dict[str, Any] = {"": qwen(), "a": first, "b": other, "base": qwen()}
            for update in (lora(first, "a"), full(other, "b"), nothing):
                await sampler.sync_weights(update)
            check(await sampler.sample(asked), asked, models, plain_logprobs)
            for name, update, model in (
                ("", lora(third), third),  # those that share the base with it keep the base
                ("a", lora(second, "a"), second),  # merged into the base, not into the current weights of ""
                ("", full(complete), complete),
                ("b", full(qwen(8), "b"), qwen(8)),
                ("a", lora(second, "a"), on_full_base),  # a new base has arrived meanwhile
                ("b", lora(second, "b"), on_full_base),  # an adapter where a full model was
                ("a", full(other, "a"), other),
            ):
                await sampler.sync_weights(update)
                models[name] = model
                check(await sampler.sample(asked), asked, models, plain_logprobs)

    run(go())


def test_adapters_of_the_trainers_own_model_are_served_by_name(tokenizer: Any, run: Any, plain_logprobs: Any) -> None:
    model = adapted(1, ("solver", "judge"))
    model.set_adapter("judge")
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}

    def merged_model(name: str) -> Any:
        counterpart = copy.deepcopy(model)
        counterpart.set_adapter(name)
        return counterpart

    async def go() -> None:
        async with TorchSampler(model.get_base_model(), tokenizer, max_batch=8) as sampler:
            for name in ("solver", "judge"):
                await sampler.sync_weights(WeightUpdate((), "shared", name=name))
            asked = requests("solver", "judge")
            for _ in range(2):
                models = {name: merged_model(name) for name in ("solver", "judge")}
                check(await sampler.sample(asked), asked, models, plain_logprobs)
                with torch.no_grad():  # a step of the trainer's
                    for name, parameter in model.named_parameters():
                        if "lora_" in name:
                            parameter.mul_(0.5)
                for name in ("solver", "judge"):
                    await sampler.sync_weights(WeightUpdate((), "shared", name=name))
            with pytest.raises(ValueError, match=r"planner.*judge, solver"):
                await sampler.sync_weights(WeightUpdate((), "shared", name="planner"))

    run(go())
    assert model.active_adapter == "judge"
    assert before == {name: parameter.requires_grad for name, parameter in model.named_parameters()}


def test_unknown_and_dropped_names_are_reported_with_the_known_ones(tokenizer: Any, run: Any) -> None:
    async def go() -> None:
        async with TorchSampler(qwen(), tokenizer) as sampler:
            with pytest.raises(ValueError, match="solver"):
                await sampler.sample(requests("solver"))
            await sampler.sync_weights(lora(adapted(1), "solver"))
            await sampler.sync_weights(lora(adapted(2), "judge"))
            with pytest.raises(ValueError, match=r"'sovler'.*'judge', 'solver'"):
                await sampler.sample([*requests("judge"), *requests("sovler")])
            await sampler.drop("solver")
            with pytest.raises(ValueError, match="'solver'"):
                await sampler.sample(requests("solver"))
            with pytest.raises(ValueError, match="'solver'"):
                await sampler.drop("solver")
            with pytest.raises(ValueError, match="default weights"):
                await sampler.drop("")
            assert len(await sampler.sample(requests("judge", ""))) == 2 * len(PROMPTS)
            assert await sampler.sync_weights(lora(adapted(1), "solver")) == 3

    run(go())


def test_an_adapter_is_read_from_the_folder_where_peft_saved_it(
    tokenizer: Any, run: Any, plain_logprobs: Any, tmp_path: Path
) -> None:
    solver = adapted(1)
    solver.save_pretrained(tmp_path / "solver")

    async def go() -> None:
        async with TorchSampler(qwen(), tokenizer) as sampler:
            await sampler.sync_weights(WeightUpdate.from_adapter(tmp_path / "solver", name="solver"))
            asked = requests("solver", "")
            check(await sampler.sample(asked), asked, {"": qwen(), "solver": solver}, plain_logprobs)

    run(go())
    with pytest.raises(ValueError, match=r"judge' contains no readable adapter.*adapter_config.json"):
        WeightUpdate.from_adapter(tmp_path / "judge")
    (tmp_path / "solver" / "adapter_model.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match="solver' contains no readable adapter"):
        WeightUpdate.from_adapter(tmp_path / "solver")


def test_a_mismatched_weight_sync_leaves_nothing_behind(tokenizer: Any, run: Any) -> None:
    async def go() -> None:
        async with TorchSampler(qwen(), tokenizer) as sampler:
            with pytest.raises(ValueError, match="shape"):
                await sampler.sync_weights(full(qwen(hidden_size=32), "old"))
            with pytest.raises(ValueError, match="'old'"):
                await sampler.sample(requests("old"))
            assert sampler.weight_version == 0

    run(go())


def test_all_named_weights_share_one_memory_limit(tokenizer: Any, run: Any) -> None:
    async def go() -> None:
        async with TorchSampler(qwen(), tokenizer, max_batch=4, cache_bytes=1 << 16, slot_bytes=1 << 20) as sampler:
            for number in range(7):
                await sampler.sync_weights(full(qwen(number), f"pool.{number}"))
                asked = [request for name in range(number + 1) for request in requests(f"pool.{name}", "")]
                assert len(await sampler.sample(asked)) == len(asked)
            batches = sampler._loop._batches.values()
            assert sum(batch._prefixes.bytes for batch in batches) <= 1 << 16
            assert sum(batch._kv._keys.nbytes + batch._kv._values.nbytes for batch in batches) <= 1 << 20
            for number in range(7):
                await sampler.drop(f"pool.{number}")
            assert len(sampler._loop._batches) == 1

    run(go())


def test_a_scripted_sampler_sees_the_name_of_the_weights(run: Any) -> None:
    async def go() -> None:
        async with ScriptedSampler(lambda request: f"I am {request.weights or 'nobody'}") as sampler:
            assert await sampler.sync_weights(WeightUpdate((), name="judge")) == 1
            assert await sampler.sync_weights(WeightUpdate(())) == 2
            output = await sampler.sample([SamplingRequest((1,), weights="judge"), SamplingRequest((1,))])
            assert [(reply.text, reply.weight_version) for reply in output] == [("I am judge", 1), ("I am nobody", 2)]
            with pytest.raises(ValueError, match=r"'solver'.*'judge'"):
                await sampler.sample([SamplingRequest((1,), weights="solver")])
            await sampler.drop("judge")
            with pytest.raises(ValueError, match="'judge'"):
                await sampler.sample([SamplingRequest((1,), weights="judge")])

    run(go())
