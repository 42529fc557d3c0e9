"""The published GSM8K score of SmolLM2-135M-Instruct (1.4%, 5-shot) as a check of ``rllm-gym eval``.

The problems of the test split are asked greedily, each after the same five solved problems of the train split; the last
number of the reply is graded. The card's number was measured with lighteval and the original weights; ``rllm-gym model
smollm2`` has weights that were quantized to 4 bits, so that only the size of the number can be expected to agree.

    python benchmarks/published_numbers.py --train gsm8k_train.jsonl --test gsm8k_test.jsonl --limit 200
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from rllm_gym.commands.main import main as rllm_gym

SHOTS = 5
_CALCULATION = re.compile(r"<<[^>]*>>")  # GSM8K's notes for a calculator


def few_shot_rows(train: Path, test: Path) -> list[dict[str, str]]:
    """Return the rows of the test file with the first solved problems of the train file in each question."""
    rows = [json.loads(line) for line in train.read_text().splitlines()[:SHOTS]]
    solved = [f"Question: {row['question']}\nAnswer: {_CALCULATION.sub('', row['answer'])}\n\n" for row in rows]
    tests = [json.loads(line) for line in test.read_text().splitlines()]
    return [
        {"question": f"{''.join(solved)}Question: {row['question']}\nAnswer:", "answer": row["answer"]} for row in tests
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True, help="JSON lines of GSM8K's train split")
    parser.add_argument("--test", type=Path, required=True, help="JSON lines of GSM8K's test split")
    parser.add_argument("--model", default=str(Path("~/.cache/rllm-gym/models/smollm2-0.1.2").expanduser()))
    parser.add_argument("--limit", default="200", help="number of test problems, chosen at random (default: 200)")
    parser.add_argument("--output", type=Path, default=Path("runs/published-numbers"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    rows = options.output / "rows"
    rows.mkdir(exist_ok=True)
    lines = map(json.dumps, few_shot_rows(options.train, options.test))
    (rows / "gsm8k.jsonl").write_text("\n".join(lines) + "\n")
    words = ["eval", "rllm/Math-v0", "-k", f"tasks={rows}/gsm8k.jsonl", "-k", "answer_format=last_number", "--shuffle"]
    words += ["-k", "split=null", "--system-prompt", "", "--model.path", options.model, "--limit", options.limit]
    words += ["--sampling.temperature", "0", "--sampling.max-tokens", "256", "--parallel", "16"]
    return rllm_gym([*words, "--output", str(options.output), "--resume"])


if __name__ == "__main__":
    raise SystemExit(main())
