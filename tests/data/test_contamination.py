"""Each data set by name has a notice, and files are recognized by their names."""

from __future__ import annotations

from rllm_gym.data.contamination import NOTICES, contamination_notice
from rllm_gym.data.presets import PRESETS


def test_each_task_set_has_a_notice() -> None:
    assert NOTICES.keys() == PRESETS.keys()
    cases = {
        "gsm8k": "gsm8k: public since 2021",
        "GSM8K@train": "gsm8k: ",
        "data/gsm8k/test.parquet": "gsm8k: ",
        "/data/humaneval.jsonl": "humaneval: ",
        "MATH-500": "math500: ",
        "hf:openai/openai_humaneval@test": "humaneval: ",
        "hf:DigitalLearningGmbH/MATH-lighteval": "math: ",
        "mine.jsonl": "unknown",
        None: "none known",
    }
    for tasks, words in cases.items():
        assert contamination_notice("rllm/Math-v0", {"tasks": tasks}).startswith(words), tasks
    assert contamination_notice("rllm/Math-v0", {"tasks": [{"question": "1"}]}).startswith("unknown")
    assert contamination_notice("my_module:my/Game-v0", {}).startswith("unknown")
    assert contamination_notice("rllm/Dataset-v0", {"dataset": "rows.jsonl"}).startswith("unknown")
