"""Saved episodes are read back unchanged, and an error about a corrupt file names the line."""

from __future__ import annotations

import json
import math
import multiprocessing
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from environments import Quiz, append_episodes
from hypothesis import given, settings
from hypothesis import strategies as st

from rllm_gym.agents import ChatAgent
from rllm_gym.core import Episode, Step, StopReason, Trajectory, TurnTokens
from rllm_gym.engine import AgentExecutionEngine, EpisodeFileError, load_episodes, save_episodes
from rllm_gym.engine.json_values import from_json, to_json
from rllm_gym.samplers import ScriptedSampler
from tests.errors import raised

texts = st.text(st.characters(exclude_categories=()), max_size=20)  # lone surrogates and separators included
floats = st.floats(allow_nan=False)
scalars = st.none() | st.booleans() | st.integers() | floats | texts | st.binary(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(texts | st.integers() | st.just("__rllm__"), inner, max_size=3)
        | st.frozensets(st.integers(), max_size=3)
    ),
    max_leaves=6,
)
messages = st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": texts}), max_size=4)


@st.composite
def turn_tokens(draw: Any) -> TurnTokens:
    ids = draw(st.lists(st.integers(0, 200_000), max_size=5))
    return TurnTokens(
        tuple(draw(st.lists(st.integers(0, 200_000), max_size=5))),
        tuple(ids),
        tuple(draw(floats) for _ in ids),
        draw(st.integers(0, 9)),
        draw(st.integers(0, 3)),
        draw(st.sampled_from(["stop", "length"])),
        tuple(draw(floats) for _ in ids) if draw(st.booleans()) else (),
    )


steps = st.builds(
    Step, values, messages, texts, texts, values, floats, st.booleans(),
    st.dictionaries(texts, values, max_size=3), st.none() | turn_tokens(), floats,
)  # fmt: skip
trajectories = st.builds(Trajectory, texts, values, st.lists(steps, max_size=2), floats, texts, st.booleans())
episodes_ = st.builds(
    Episode, texts, texts, texts, st.integers(0, 2**64), texts, st.booleans(), st.lists(trajectories, max_size=2),
    floats, st.booleans(), st.sampled_from(StopReason), st.none() | texts, st.integers(1, 5),
    st.dictionaries(texts, floats, max_size=3), st.dictionaries(texts, values, max_size=3),
)  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(st.lists(episodes_, max_size=2))
def test_saved_episodes_are_read_back_unchanged(episodes: list[Episode]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episodes.jsonl"
        assert save_episodes(path, episodes) == len(episodes)
        assert list(load_episodes(path)) == episodes
        assert len(path.read_bytes().splitlines()) == len(episodes)


def test_values_unknown_to_json_are_restored_or_saved_as_text() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "Odd()"

    info = {
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
        "float32": np.float32(0.1),
        "flag": np.True_,
        "inf": [math.inf, -math.inf],
        "set": {1, 2},
        "odd": Odd(),
        "tuple keys": {(1, 2): "x"},
    }
    back = from_json(json.loads(json.dumps(to_json(info), allow_nan=False)))
    assert np.array_equal(back["array"], info["array"])
    assert back["array"].dtype == np.int16
    assert back["float32"] == float(np.float32(0.1))
    assert back["flag"] is True
    assert back["inf"] == [math.inf, -math.inf]
    assert math.isnan(from_json(to_json(math.nan)))
    assert (back["set"], back["odd"], back["tuple keys"]) == ({1, 2}, "Odd()", {(1, 2): "x"})


def make_episodes(count: int = 3) -> list[Episode]:
    return AgentExecutionEngine(env=Quiz, sampler=ScriptedSampler(lambda request: "?")).run_sync(range(count))


def test_a_line_is_one_episode_with_what_training_needs(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "episodes.jsonl"
    tokens = TurnTokens((1, 2), (3, 4), (-0.1, -1 / 3), 7, 0, "stop")
    episode = Episode("e", "t", trajectories=[Trajectory(steps=[Step(tokens=tokens, reward=0.5)])])
    save_episodes(path, [episode])
    row = json.loads(path.read_text())
    assert row["schema_version"] == 1
    (step,) = row["trajectories"][0]["steps"]
    assert step["tokens"]["mask"] == [0, 0, 1, 1]
    assert step["tokens"]["logprobs"] == [-0.1, -1 / 3]
    (back,) = load_episodes(path)
    assert back.trajectories[0].branches() == episode.trajectories[0].branches()


def test_a_conversation_of_many_turns_is_saved_once(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    episodes = AgentExecutionEngine(
        env=Quiz, env_kwargs={"max_turns": 50}, agent=ChatAgent, sampler=ScriptedSampler(lambda request: "x" * 1000)
    ).run_sync([0])
    save_episodes(path, episodes)
    assert path.stat().st_size < 50 * 1000 * 10
    assert list(load_episodes(path)) == episodes


def test_appending_adds_and_replacing_is_atomic(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    episodes = make_episodes()
    save_episodes(path, episodes[:1])
    save_episodes(path, episodes[1:], append=True)
    assert list(load_episodes(path)) == episodes

    def breaks() -> Any:
        yield episodes[0]
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        save_episodes(path, breaks())
    assert list(load_episodes(path)) == episodes
    assert [entry.name for entry in tmp_path.iterdir()] == ["episodes.jsonl"]


def test_several_processes_append_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=append_episodes, args=(path, name)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    names = [episode.episode_id for episode in load_episodes(path)]
    assert sorted(names) == sorted(f"{name}-{number}" for name in "ab" for number in range(50))


def test_a_torn_line_is_an_error_and_earlier_episodes_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    save_episodes(path, make_episodes())
    complete = path.read_bytes()
    path.write_bytes(complete[:-20])
    reader = load_episodes(path)
    assert [next(reader).task_id, next(reader).task_id] == ["task-0", "task-1"]
    with pytest.raises(EpisodeFileError, match="line 3: incomplete line"):
        next(reader)
    with pytest.raises(EpisodeFileError, match="line 3"):
        save_episodes(path, make_episodes(1), append=True)


def test_a_line_that_is_not_an_episode_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    save_episodes(path, make_episodes(1))
    first = path.read_bytes()
    wrong = []
    for line, output in (
        ("{]", "not a JSON line"),
        ("[1, 2]", "schema_version is None"),
        ('{"schema_version": 99}', "schema_version is 99"),
        ('{"schema_version": 1, "episode_id": "e"}', "KeyError"),
        ("\xff\xfe", "line 2"),
    ):
        path.write_bytes(first + line.encode("latin-1") + b"\n")
        error = raised(lambda: list(load_episodes(path)))
        if not (isinstance(error, EpisodeFileError) and "line 2" in str(error) and output in str(error)):
            wrong.append((line, error))
    assert wrong == []


def test_an_inconsistent_mask_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    tokens = TurnTokens((1,), (2,), (-0.5,))
    save_episodes(path, [Episode("e", "t", trajectories=[Trajectory(steps=[Step(tokens=tokens)])])])
    path.write_text(path.read_text().replace('"mask":[0,1]', '"mask":[1,1]'))
    with pytest.raises(EpisodeFileError, match="mask"):
        list(load_episodes(path))
