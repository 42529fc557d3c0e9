"""TRL's side of ``real_model.py``: GRPO of a pretrained model on rows of ``prompt`` and ``answer``.

It runs in an interpreter with TRL and does not import this project. The job is a JSON
file; the curve is written as JSON.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


def is_right(reply: str, answer: str) -> bool:
    """Return whether the last number of the reply is the answer, as ``correct`` in ``real_model.py``."""
    return re.findall(r"-?\d+", reply)[-1:] == [answer]


def correct(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    return [float(is_right(item[0]["content"], right)) for item, right in zip(completions, answer, strict=True)]


class Curve(TrainerCallback):
    """Evaluates the model every few steps, and counts the CPU time of everything else."""

    def __init__(self, job: dict[str, Any], tokenizer: Any) -> None:
        self.trainer: GRPOTrainer | None = None
        self.points: list[dict[str, float]] = []
        self._job = job
        self._tokenizer = tokenizer
        self._spent, self._began = 0.0, 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._evaluate(0)
        self._began = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        step = state.global_step
        if step % self._job["validate_every"] == 0 or step == self._job["steps"]:
            self._spent += time.process_time() - self._began
            self._evaluate(step)
            self._began = time.process_time()

    @torch.no_grad()
    def _evaluate(self, step: int) -> None:
        assert self.trainer is not None
        model: Any = self.trainer.accelerator.unwrap_model(self.trainer.model)
        point = {"step": step, "cpu_seconds": self._spent}
        model.eval()
        for name, sampled in (("sampled", True), ("greedy", False)):
            right = 0
            for rows in _chunks(self._job["validation"], 32):
                texts = [
                    self._tokenizer.apply_chat_template(
                        [{"role": "user", "content": row["prompt"]}], tokenize=False, add_generation_prompt=True
                    )
                    for row in rows
                ]
                inputs = self._tokenizer(texts, return_tensors="pt", padding=True, padding_side="left")
                length = {"max_new_tokens": self._job["max_tokens"]}
                output = model.generate(**inputs, **length, do_sample=sampled, temperature=1.0, top_k=0, top_p=1.0)
                replies = self._tokenizer.batch_decode(
                    output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
                )
                right += sum(is_right(reply, row["answer"]) for reply, row in zip(replies, rows, strict=True))
            point[name] = right / len(self._job["validation"])
        model.train()
        self.points.append(point)
        print(point, file=sys.stderr, flush=True)


def _chunks(rows: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [rows[index : index + size] for index in range(0, len(rows), size)]


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    groups, repeats = job["groups_per_step"], job["group_size"]
    config = GRPOConfig(
        output_dir=str(Path(job["output"]) / "trl"),
        seed=job["seed"],
        per_device_train_batch_size=groups * repeats,
        num_generations=repeats,
        max_completion_length=job["max_tokens"],
        learning_rate=job["lr"],
        lr_scheduler_type="constant",
        beta=0.0,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        max_steps=job["steps"],
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    curve = Curve(job, tokenizer)
    rows = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in job["train"]]
    lora = {"r": job["lora_rank"], "lora_alpha": job["lora_alpha"], "target_modules": "all-linear"}
    curve.trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs=correct,
        args=config,
        train_dataset=Dataset.from_list(rows),
        peft_config=LoraConfig(**lora, lora_dropout=0.0, task_type="CAUSAL_LM"),
        callbacks=[curve],
    )
    curve.trainer.train()
    Path(sys.argv[2]).write_text(json.dumps(curve.points) + "\n")


if __name__ == "__main__":
    main()
