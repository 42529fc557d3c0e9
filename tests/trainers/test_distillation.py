"""On-policy distillation: the advantages and gradients equal those of plain implementations, for a local teacher and
one behind an endpoint, and the policy approaches its teacher.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from echo_config import echo_config
from refused_options import not_raised
from test_example_algorithms import branching_samples
from transformers import AutoModelForCausalLM

from rllm_gym.core import TokenSequence
from rllm_gym.engine import load_episodes
from rllm_gym.samplers.protocol import SamplerError
from trainers.algorithms import algorithm_options, make_algorithm
from trainers.config import ConfigError, ModelConfig, OptimizerConfig, validate
from trainers.dry_run import dry_run
from trainers.learner import Learner
from trainers.loop import train
from trainers.model import Policy
from trainers.model.loading import load_causal_lm
from trainers.run.metrics import read_metrics
from trainers.samples import samples_of
from trainers.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and its teacher, which differs in the linear layers that adapters are trained on."""
    folder = tmp_path_factory.mktemp("distillation")
    tiny = make_tiny_model(folder / "tiny", hidden_size=32, num_heads=1, num_layers=1, vocab_size=300, init_std=0.3)
    model = AutoModelForCausalLM.from_pretrained(tiny)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in model.model.layers.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight += 0.3 * torch.randn(module.weight.shape, generator=generator)
    model.save_pretrained(folder / "teacher")
    Policy(ModelConfig(str(tiny), "full")).tokenizer.save_pretrained(folder / "teacher")
    return tiny, folder / "teacher"


def naive_logps(model: Any, sequence: TokenSequence) -> torch.Tensor:
    """Return the log-probs of the whole vocabulary where each token was sampled."""
    logp_TV = model(torch.tensor([sequence.ids])).logits[0].log_softmax(-1)
    return logp_TV[[t - 1 for t, sampled in enumerate(sequence.mask) if sampled]]


def chosen_of(sequence: TokenSequence, logp_NV: torch.Tensor) -> torch.Tensor:
    ids = [token for token, sampled in zip(sequence.ids, sequence.mask, strict=True) if sampled]
    return logp_NV[range(len(ids)), ids]


def sampler_logps(sequence: TokenSequence) -> list[float]:
    return [logp for logp, sampled in zip(sequence.logprobs, sequence.mask, strict=True) if sampled]


def test_the_advantage_is_the_teachers_log_prob_minus_the_policys(models: tuple[Path, Path]) -> None:
    model, teacher = models
    samples = branching_samples()
    plain = AutoModelForCausalLM.from_pretrained(teacher)
    run = make_algorithm(algorithm_options("distillation", teacher=str(teacher), kl_reward=2.0))
    with serve(plain) as address:
        for name in (str(teacher), f"{address}#teacher"):
            policy = Policy(ModelConfig(str(model), "lora"))
            policy.add_teacher(name)
            learner = Learner(policy, OptimizerConfig(tokens_per_microbatch=60), 1)
            targets = run.targets(samples, learner.signals(samples, run.required_signals))
            for sample, adv_N in zip(samples, targets["adv"], strict=True):
                expected = []
                for sequence in sample.sequences:
                    with torch.no_grad():
                        wanted = chosen_of(sequence, naive_logps(plain, sequence)).tolist()
                    expected += [2 * (q - p) for q, p in zip(wanted, sampler_logps(sequence), strict=True)]
                assert adv_N == pytest.approx(expected, abs=1e-5), name


def test_gkd_has_the_gradient_of_the_divergence_over_the_vocabulary(models: tuple[Path, Path]) -> None:
    """Also with a teacher whose vocabulary is padded, and in several microbatches with common prefixes."""
    model, teacher = models
    samples = branching_samples()
    padded = teacher.with_name("padded")
    bigger = AutoModelForCausalLM.from_pretrained(teacher)
    bigger.resize_token_embeddings(320, mean_resizing=False)
    with torch.no_grad():
        bigger.get_output_embeddings().weight[300:] = 0
    bigger.save_pretrained(padded)
    Policy(ModelConfig(str(teacher), "full")).tokenizer.save_pretrained(padded)
    for folder in (teacher, padded):
        policy = Policy(ModelConfig(str(model), "full"))
        policy.add_teacher(str(folder))
        learner = Learner(policy, OptimizerConfig(warmup_steps=0, max_grad_norm=1e9, tokens_per_microbatch=60), 10)
        learner.optimizer = torch.optim.SGD(learner.optimizer.param_groups, lr=0.5)
        learner.learning_rate = lambda step: 0.5  # type: ignore[method-assign]
        run = make_algorithm(algorithm_options("gkd", teacher=str(folder)))
        stats = learner.update(0, samples, run.targets(samples, {}), run, 0.0)

        student, plain = (AutoModelForCausalLM.from_pretrained(path) for path in (model, teacher))
        divergences = []
        for sequence in (sequence for sample in samples for sequence in sample.sequences):
            with torch.no_grad():
                logq_NV = naive_logps(plain, sequence)
            logp_NV = naive_logps(student, sequence)
            divergences += list((logp_NV.exp() * (logp_NV - logq_NV)).sum(-1))
        loss = torch.stack(divergences).mean()
        loss.backward()
        if folder == teacher:
            assert stats.loss == pytest.approx(loss.item(), abs=1e-5)
            for (name, found), parameter in zip(policy.parameters, student.parameters(), strict=True):
                expected = parameter.detach() - 0.5 * parameter.grad
                assert found.detach().numpy() == pytest.approx(expected.numpy(), abs=1e-5), name
        else:  # the additional words take some of the teacher's probability
            assert stats.loss == pytest.approx(loss.item(), abs=0.5)


def test_gkd_compares_the_most_likely_tokens_of_the_teacher_and_the_rest(models: tuple[Path, Path]) -> None:
    """The same with a local teacher and one behind an endpoint, and with all tokens the whole divergence."""
    model, teacher = models
    samples = branching_samples()
    student, plain = (AutoModelForCausalLM.from_pretrained(path) for path in (model, teacher))

    def divergence_of(sequence: TokenSequence, top_k: int) -> torch.Tensor:
        with torch.no_grad():
            q_NV = naive_logps(plain, sequence).exp()
        p_NV = naive_logps(student, sequence).exp()
        total_N = torch.zeros(len(q_NV))
        for place, (p_V, q_V) in enumerate(zip(p_NV, q_NV, strict=True)):
            top = q_V.argsort(descending=True)[:top_k]
            p, q = p_V[top], q_V[top]
            if top_k < len(q_V):
                p, q = (torch.cat([each, 1 - each.sum()[None]]) for each in (p, q))
            total_N[place] = (p * (p / q).log()).sum()
        return total_N

    found: dict[tuple[int, str], float] = {}
    with serve(plain) as address:
        for top_k, name in ((1, str(teacher)), (4, str(teacher)), (4, f"{address}#teacher"), (300, str(teacher))):
            policy = Policy(ModelConfig(str(model), "full"))
            policy.add_teacher(name, top_k)
            learner = Learner(policy, OptimizerConfig(warmup_steps=0, max_grad_norm=1e9, tokens_per_microbatch=60), 10)
            learner.optimizer = torch.optim.SGD(learner.optimizer.param_groups, lr=0.5)
            learner.learning_rate = lambda step: 0.5  # type: ignore[method-assign]
            run = make_algorithm(algorithm_options("gkd", teacher=name, teacher_top_k=top_k))
            stats = learner.update(0, samples, run.targets(samples, {}), run, 0.0)
            student.zero_grad()
            sequences = [sequence for sample in samples for sequence in sample.sequences]
            loss = torch.cat([divergence_of(sequence, top_k) for sequence in sequences]).mean()
            loss.backward()
            assert stats.loss == pytest.approx(loss.item(), abs=1e-4), (top_k, name)
            for (parameter_name, value), parameter in zip(policy.parameters, student.parameters(), strict=True):
                expected = parameter.detach() - 0.5 * parameter.grad
                assert value.detach().numpy() == pytest.approx(expected.numpy(), abs=1e-4), (top_k, parameter_name)
            found[top_k, name] = stats.loss
    assert found[1, str(teacher)] < found[4, str(teacher)] < found[300, str(teacher)]


@pytest.mark.parametrize(("name", "tuning"), [("distillation", "full"), ("gkd", "lora")])
def test_the_policy_approaches_its_teacher(models: tuple[Path, Path], tmp_path: Path, name: str, tuning: str) -> None:
    model, teacher = models
    config = echo_config(
        tmp_path,
        steps=10,
        model={"path": str(model), "tuning": tuning},
        algorithm={"name": name, "teacher": str(teacher), "group_size": 4, "groups_per_step": 8},
        optimizer={"lr": 0.01, "warmup_steps": 0, "schedule": "constant"},
        validation=None,
        checkpoint=None,
        save_episodes_every=1,
    )
    train(config)
    sequences = [
        sequence
        for sample in samples_of(load_episodes(tmp_path / "run" / "episodes" / "train-000001.jsonl"))
        for sequence in sample.sequences
    ]
    wanted = AutoModelForCausalLM.from_pretrained(teacher)
    before, after = (divergence(path, wanted, sequences) for path in (model, tmp_path / "run" / "model"))
    assert before > 1.0
    assert after < 0.85 * before
    first, *_, last = read_metrics(tmp_path / "run")
    shown = [row["loss"] if name == "gkd" else -row["advantages/mean"] for row in (first, last)]
    assert shown[0] == pytest.approx(before, rel=1e-4 if name == "gkd" else 0.5), "the metrics estimate it"
    assert shown[1] < shown[0]


def divergence(path: Path, teacher: Any, sequences: Sequence[TokenSequence]) -> float:
    """Return the mean KL divergence of a model from the teacher over the sampled tokens."""
    policy = load_causal_lm(str(path), dtype=torch.float32)
    with torch.no_grad():
        pairs = [(naive_logps(policy, sequence), naive_logps(teacher, sequence)) for sequence in sequences]
    return float(torch.cat([(logp_NV.exp() * (logp_NV - logq_NV)).sum(-1) for logp_NV, logq_NV in pairs]).mean())


@contextmanager
def serve(model: Any, max_logprobs: int = 20, **changes: Any) -> Iterator[str]:
    """Serve the log-probs of prompts as vLLM does, or what ``changes`` put in their place."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            ids = body["prompt"]
            assert (body["model"], body["max_tokens"]) == ("teacher", 1)
            with torch.no_grad():
                logp_TV = model(torch.tensor([ids])).logits[0].log_softmax(-1)
            most = min(body["prompt_logprobs"], max_logprobs)
            rows = [
                {
                    str(place): {"logprob": logp_V[place].item()}
                    for place in (token, *logp_V.topk(most).indices.tolist())
                }
                for token, logp_V in zip(ids[1:], logp_TV)
            ]
            choice = {"text": "", "finish_reason": "length", "prompt_logprobs": [None, *rows], **changes}
            answer = json.dumps({"choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "options",
    [
        {"name": "distillation"},
        {"name": "gkd", "teacher_top_k": 5},
        {"name": "reinforce++", "kl": 0.3, "minibatches": 2},
    ],
)
def test_a_run_with_an_endpoint_is_that_with_the_same_teacher_here(
    models: tuple[Path, Path], tmp_path: Path, options: dict[str, Any]
) -> None:
    model, teacher = models
    plain = AutoModelForCausalLM.from_pretrained(teacher)
    rows = []
    with serve(plain) as address:
        for number, name in enumerate((str(teacher), f"{address}#teacher")):
            config = echo_config(
                tmp_path,
                output=str(tmp_path / str(number)),
                steps=1,
                model={"path": str(model)},
                algorithm={**options, "teacher": name},
                validation=None,
            )
            train(config)
            rows.append(read_metrics(tmp_path / str(number))[-1])
    for metric in ("advantages/mean", "advantages/max", "loss", "optim/grad_norm", "policy/kl"):
        assert metric not in rows[0] or rows[0][metric] == pytest.approx(rows[1][metric], rel=1e-4), metric


def test_an_endpoint_without_log_probs_of_prompts_is_an_error(models: tuple[Path, Path]) -> None:
    policy = Policy(ModelConfig(str(models[0]), "lora"))
    sequence = branching_samples()[0].sequences[0]
    plain = AutoModelForCausalLM.from_pretrained(models[1])
    for wrong in (
        None,
        [None],
        [None, {"5": {"logprob": float("nan")}}],
        [None, {"5": {"logprob": -(10**400)}}],
        "text",
    ):
        with serve(plain, prompt_logprobs=wrong) as address:
            policy.add_teacher(f"{address}#teacher")
            assert policy.endpoint is not None
            with pytest.raises(SamplerError, match="/v1/completions: the reply lacks log-probs of the prompt"):
                policy.endpoint.logprobs([sequence])
    with serve(plain, max_logprobs=3) as address:
        policy.add_teacher(f"{address}#teacher", 5)
        assert policy.endpoint is not None
        with pytest.raises(SamplerError, match="log-probs of a token, not 5; start vLLM with a greater --max-logprobs"):
            policy.endpoint.top_logprobs([sequence])
    rows = [None, *({str(token): {"logprob": -1.0}, "300": {"logprob": -0.5}} for token in sequence.ids[1:])]
    with serve(plain, prompt_logprobs=rows) as address:
        policy.add_teacher(f"{address}#teacher", 2)
        with pytest.raises(SamplerError, match="token 300 is not one of the 300 of the model"):
            policy.endpoint.top_logprobs([sequence])


@pytest.mark.parametrize("where", ["kl", "kl_reward"])
def test_rewards_are_mixed_with_a_teacher(models: tuple[Path, Path], where: str) -> None:
    """The KL terms of every algorithm refer to the teacher instead of the model before training."""
    model, teacher = models
    samples = branching_samples()
    run = make_algorithm(algorithm_options("rloo", teacher=str(teacher), drop_zero_variance=False, **{where: 0.3}))
    policy = Policy(ModelConfig(str(model), "full"))
    policy.add_teacher(str(teacher))
    learner = Learner(policy, OptimizerConfig(lr=1e-9), 1)
    targets = run.targets(samples, learner.signals(samples, run.required_signals))
    with torch.no_grad():
        own, wanted = (
            [
                np.concatenate([chosen_of(each, naive_logps(plain, each)).numpy() for each in sample.sequences])
                for sample in samples
            ]
            for plain in (AutoModelForCausalLM.from_pretrained(path) for path in models)
        )
    if where == "kl":
        stats = learner.update(0, samples, targets, run, 0.0)
        k3_N = np.concatenate([np.exp(q_N - p_N) - (q_N - p_N) - 1 for p_N, q_N in zip(own, wanted, strict=True)])
        assert stats.kl == pytest.approx(k3_N.mean(), rel=1e-4)
        return
    sampled = [np.concatenate([sampler_logps(each) for each in sample.sequences]) for sample in samples]
    changed = [
        replace(sample, reward=sample.reward - 0.3 * float((p_N - q_N).sum()), turn_rewards=())
        for sample, p_N, q_N in zip(samples, sampled, wanted, strict=True)
    ]
    expected = make_algorithm(algorithm_options("rloo", drop_zero_variance=False)).targets(changed, {})["adv"]
    for adv_N, expected_N in zip(targets["adv"], expected, strict=True):
        assert adv_N == pytest.approx(expected_N, abs=1e-4)


REFUSED = [
    ({}, "algorithm.teacher is missing"),
    ({"teacher": "http://localhost/v1"}, r"has no name of a model; write http://localhost/v1#NAME"),
    ({"teacher": "x", "kl": 0.1}, r"algorithm.kl=0.1 is not an option here"),
    ({"teacher": "x", "kl_reward": 0.0}, "kl_reward=0.0 must be above 0"),
    ({"teacher": "x", "name": "gkd", "kl_reward": 0.5}, "algorithm.kl_reward=0.5 is not an option here"),
    ({"teacher": "x", "name": "gkd", "loss": "clip"}, "algorithm.loss='clip' is not an option here"),
    (
        {"teacher": "x", "name": "grpo"},
        "teacher='x' is not an option here; it is one only with algorithm.kl",
    ),
    (
        {"teacher": "x", "name": "grpo", "kl": 0.1, "reference_sync": (1.0, 0.5)},
        r"algorithm.reference_sync=.* is not an option here; .* without a teacher",
    ),
    ({"teacher": "http://localhost/v1#x", "name": "gkd"}, "only a local model has the distribution"),
    ({"teacher": "x", "teacher_top_k": 5}, "algorithm.teacher_top_k=5 is not an option here"),
]


def test_options_without_effect_are_refused(tmp_path: Path, models: tuple[Path, Path]) -> None:
    def act(options: dict[str, Any]) -> object:
        return validate(echo_config(tmp_path, algorithm={"name": "distillation", **options}))

    assert not not_raised(REFUSED, act, ConfigError)
    other = make_tiny_model(tmp_path / "other", hidden_size=32, num_heads=1, num_layers=1, vocab_size=280)
    with pytest.raises(ConfigError, match="has another vocabulary than model"):
        Policy(ModelConfig(str(models[0]), "lora")).add_teacher(str(other))
    with pytest.raises(ConfigError, match=r"sampling.temperature=0.7: endpoints return the log-probs of temperature 1"):
        Policy(ModelConfig(str(models[0]), "lora"), temperature=0.7).add_teacher("http://localhost/v1#x")


def test_adapters_are_distilled_in_bfloat16(models: tuple[Path, Path]) -> None:
    policy = Policy(ModelConfig(str(models[0]), "lora", "bfloat16"))
    policy.add_teacher(str(models[1]))
    learner = Learner(policy, OptimizerConfig(), 1)
    run = make_algorithm(algorithm_options("gkd", teacher=str(models[1])))
    samples = branching_samples()
    stats = learner.update(0, samples, run.targets(samples, {}), run, 0.0)
    assert np.isfinite(stats.loss)
    assert stats.grad_norm > 0
    assert stats.skipped == 0


def test_the_estimate_of_memory_counts_the_teacher(models: tuple[Path, Path], tmp_path: Path) -> None:
    tiny, teacher = models
    model = {"path": str(tiny), "tuning": "full"}
    plain = dry_run(echo_config(tmp_path, model=model)).memory
    taught = dry_run(
        echo_config(tmp_path, model=model, algorithm={"name": "distillation", "teacher": str(teacher)})
    ).memory
    assert taught.resident["teacher"] == plain.resident["weights"], "of the same size, in float32"
    assert plain.resident["teacher"] == taught.resident["reference"] == 0
    assert taught.peak - plain.peak == pytest.approx(taught.resident["teacher"], rel=0.2)
