"""Episodes: training data contains each sampled token once, with rewards on the correct positions."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm_gym import EnvironmentFault, Episode, Step, StopReason, TokenSequence, Trajectory
from rllm_gym.core import TurnTokens


@st.composite
def turns(draw) -> TurnTokens:
    ids = tuple(draw(st.lists(st.integers(0, 50), max_size=5)))
    return TurnTokens(
        context_ids=tuple(draw(st.lists(st.integers(51, 99), max_size=5))),
        ids=ids,
        logprobs=tuple(draw(st.floats(-9, -0.01)) for _ in ids),
        weight_version=draw(st.integers(0, 3)),
        branch=draw(st.integers(0, 2)),
    )


@given(st.lists(st.tuples(turns(), st.floats(-1, 1)), max_size=8))
def test_every_sampled_token_is_trained_on_exactly_once(pieces):
    steps = [Step(tokens=tokens, reward=reward) for tokens, reward in pieces]
    sequences = Trajectory(steps=steps).branches()
    assert len(sequences) == len({tokens.branch for tokens, _ in pieces})
    seen: dict[int, list[tuple[int, float, int]]] = {}
    for sequence in sequences:
        for token, mask, logprob, version, turn in zip(
            sequence.ids, sequence.mask, sequence.logprobs, sequence.versions, sequence.turns
        ):
            if mask:
                seen.setdefault(turn, []).append((token, logprob, version))
            else:
                assert (logprob, version, turn) == (0.0, -1, -1)
                assert token > 50
    for index, (tokens, _) in enumerate(pieces):
        expected = [(token, logprob, tokens.weight_version) for token, logprob in zip(tokens.ids, tokens.logprobs)]
        assert seen.pop(index, []) == expected
    assert not seen


@given(st.lists(st.tuples(turns(), st.floats(0.1, 1)), min_size=1, max_size=6))
def test_the_reward_of_a_turn_is_on_its_last_token(pieces):
    steps = [Step(tokens=tokens, reward=reward) for tokens, reward in pieces]
    for sequence in Trajectory(steps=steps).branches():
        for place, reward in enumerate(sequence.rewards):
            if reward:
                turn = sequence.turns[place]
                assert reward == pieces[turn][1]
                assert turn not in sequence.turns[place + 1 :]
        total = sum(pieces[turn][1] for turn in set(sequence.turns) - {-1})
        assert sum(sequence.rewards) == pytest.approx(total)


def test_a_branch_contains_its_context_and_turns_in_order():
    first = TurnTokens((51, 52), (1, 2), (-0.1, -0.2))
    second = TurnTokens((53,), (3,), (-0.3,), weight_version=1)
    rewritten = TurnTokens((54,), (4,), (-0.4,), branch=1)
    trajectory = Trajectory(
        steps=[Step(tokens=first), Step(tokens=second, reward=0.5), Step(tokens=rewritten, reward=1.0)]
    )
    main, branch = trajectory.branches()
    assert main == TokenSequence(
        ids=(51, 52, 1, 2, 53, 3),
        mask=(0, 0, 1, 1, 0, 1),
        logprobs=(0.0, 0.0, -0.1, -0.2, 0.0, -0.3),
        versions=(-1, -1, 0, 0, -1, 1),
        rewards=(0.0, 0.0, 0.0, 0.0, 0.0, 0.5),
        turns=(-1, -1, 0, 0, -1, 1),
    )
    assert branch.ids == (54, 4)
    assert branch.turns == (-1, 2)
    assert len(main) == 6


def test_a_step_without_tokens_can_be_evaluated_and_not_trained_on():
    trajectory = Trajectory(name="agent_0", steps=[Step(reward=1.0)])
    with pytest.raises(ValueError, match="step 0 of trajectory 'agent_0' has no token ids"):
        trajectory.branches()


def test_fields_of_different_lengths_are_errors():
    with pytest.raises(ValueError, match="one entry per token"):
        TokenSequence((1, 2), (1,), (0.0,), (0,), (0.0,), (0,))
    with pytest.raises(ValueError, match="2 sampled ids but 1 log-probs"):
        TurnTokens((), (1, 2), (-0.1,))


def test_faults_are_never_trained_on():
    episode = Episode("e", "t", trajectories=[Trajectory(steps=[Step(), Step()]), Trajectory(steps=[Step()])])
    assert episode.num_turns == 3
    trainable = set()
    for reason in StopReason:
        assert str(reason) == reason.value  # plain text in files and tables
        episode.stop_reason = reason
        assert type(episode.trainable) is bool
        if episode.trainable:
            trainable.add(reason)
    untrainable = set(StopReason) - trainable
    assert untrainable == {
        StopReason.FAULT,
        StopReason.AGENT_ERROR,
        StopReason.CANCELLED,
        StopReason.PROMPT_TOO_LONG,
        StopReason.NONE,
    }


def test_a_fault_keeps_its_kind_across_processes():
    class Mine(EnvironmentFault):
        pass

    fault = pickle.loads(pickle.dumps(EnvironmentFault("the server is gone", kind="server")))  # noqa: S301
    assert (str(fault), fault.kind) == ("the server is gone", "server")
    assert Mine("x").kind == "environment"
    assert isinstance(fault, Exception)
