"""TRL's side of ``vs_trl.py``; it runs in an interpreter with TRL and does not import this project."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

# Imported first, because it reserves standard output for the answers.
from protocol import answer, load_adapters, next_command, reward, serve  # isort: skip

import torch
import transformers
import trl
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def reward_function(completions: list[Any], **_: Any) -> list[float]:
    return [reward(completion[0]["content"]) for completion in completions]


def make_trainer(data: dict[str, Any], steps: int, callbacks: list[TrainerCallback] | None = None) -> GRPOTrainer:
    case, settings, lora = data["case"], data["settings"], data["settings"]["lora"]
    sequences = case["prompts"] * case["group"]
    config = GRPOConfig(
        output_dir=str(Path.cwd() / "trl"),
        per_device_train_batch_size=sequences,
        gradient_accumulation_steps=1,
        num_generations=case["group"],
        max_completion_length=case["completion"][1],
        learning_rate=settings["lr"],
        max_grad_norm=settings["max_grad_norm"],
        epsilon=settings["clip_low"],
        epsilon_high=settings["clip_high"],
        beta=0.0,
        loss_type="dapo",
        scale_rewards="none",
        temperature=1.0,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        max_steps=steps,
        logging_steps=1_000_000,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        shuffle_dataset=False,
    )
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(data["model"], dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(data["model"]),
        reward_funcs=reward_function,
        args=config,
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": text}]} for text in data["texts"]] * (steps + 1)
        ),
        peft_config=LoraConfig(
            r=lora["rank"],
            lora_alpha=lora["alpha"],
            target_modules=lora["targets"],
            lora_dropout=0.0,
            task_type="CAUSAL_LM",
        ),
        callbacks=callbacks,
    )


def describe(data: dict[str, Any]) -> str:
    config = make_trainer(data, 1).args
    names = (
        "loss_type beta epsilon epsilon_high scale_rewards num_iterations optim learning_rate max_grad_norm "
        "per_device_train_batch_size gradient_accumulation_steps num_generations gradient_checkpointing bf16 "
        "use_vllm use_transformers_continuous_batching temperature"
    )
    values = ", ".join(f"{name}={getattr(config, name)!s}" for name in names.split())
    return (
        f"trl {trl.__version__}, transformers {transformers.__version__}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} thread; {values}; everything else as TRL sets it"
    )


class Update:
    """The update alone, on given completions: the operations of ``GRPOTrainer`` without its loop."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.trainer = make_trainer(data, 1)
        self.trainer.create_optimizer_and_scheduler(1000)
        self.trainer.current_gradient_accumulation_steps = 1
        self.model = self.trainer.model_wrapped
        self.model.train()
        self.parameters = {name: value for name, value in self.model.named_parameters() if value.requires_grad}
        load_adapters(self.parameters, data["adapters"])
        self.inputs = inputs_of(data, self.trainer.processing_class.pad_token_id)

    def step(self) -> float:
        trainer = self.trainer
        loss = trainer.compute_loss(self.model, self.inputs)
        trainer.accelerator.backward(loss)
        trainer.accelerator.clip_grad_norm_(self.model.parameters(), trainer.args.max_grad_norm)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        return float(loss.detach())


def inputs_of(data: dict[str, Any], pad: int) -> dict[str, Any]:
    """Return prompts padded on the left and completions padded on the right, as prepared by the trainer."""
    rows = [(p, c) for p, group in zip(data["prompts"], data["completions"], strict=True) for c in group]
    left, right = max(len(prompt) for prompt, _ in rows), max(len(completion) for _, completion in rows)
    reward_PG = torch.tensor(data["rewards"])
    adv_B = (reward_PG - reward_PG.mean(1, keepdim=True)).flatten()
    return {
        "prompt_ids": torch.tensor([[pad] * (left - len(p)) + p for p, _ in rows]),
        "prompt_mask": torch.tensor([[0] * (left - len(p)) + [1] * len(p) for p, _ in rows]),
        "completion_ids": torch.tensor([c + [pad] * (right - len(c)) for _, c in rows]),
        "completion_mask": torch.tensor([[1] * len(c) + [0] * (right - len(c)) for _, c in rows]),
        "advantages": adv_B,
        "num_items_in_batch": torch.tensor(sum(len(c) for _, c in rows)),
    }


class OneAtATime(TrainerCallback):
    """Lets the trainer's own loop take a step only on request, and reports its CPU time."""

    def __init__(self) -> None:
        self.trainer: GRPOTrainer | None = None
        self._began = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        answer(ready=True)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        next_command()
        self._began = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        cpu = time.process_time() - self._began
        assert self.trainer is not None
        inputs = self.trainer._buffered_inputs[0]
        answer(cpu=cpu, tokens=int(inputs["completion_mask"].sum()))


def begin(data: dict[str, Any], steps: int) -> None:
    callback = OneAtATime()
    trainer = make_trainer(data, steps, [callback])
    callback.trainer = trainer
    trainer.train()


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(Update, describe, begin)
