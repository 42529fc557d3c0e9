"""TicTacToe and ConnectFour: legality, exact values, opponents, splits."""

import random
from functools import cache
from itertools import product

import pettingzoo
import pytest
from parsing.checks import assert_all_raise

from rllm_gym.core import SPLITS, TaskError
from rllm_gym.multiagent import opponents
from rllm_gym.multiagent.connect_four import ConnectFourBoard, make_shape
from rllm_gym.multiagent.connect_four_solver import Solver, TooManyPositions
from rllm_gym.multiagent.tic_tac_toe import TicTacToeBoard


def play(game, players, seed):
    """Play one episode; return the results by agent."""
    rng = random.Random(seed)
    results = {}
    for agent in game.agent_iter():
        _, reward, terminated, truncated, info = game.last()
        if terminated or truncated:
            results[agent] = reward
            game.step(None)
        else:
            game.step(players[agent](info, rng))
    return results


@cache
def brute_force(board):
    if board.is_over:
        return 0 if board.winner is None else -1
    return max(-brute_force(board.after(move)) for move in board.moves())


# Lines and winners, computed differently from the games.
def line_exists(rows, mark, length):
    height, width = len(rows), len(rows[0])
    for r, c, (dr, dc) in product(range(height), range(width), ((0, 1), (1, 0), (1, 1), (1, -1))):
        cells = [(r + i * dr, c + i * dc) for i in range(length)]
        if all(0 <= y < height and 0 <= x < width and rows[y][x] == mark for y, x in cells):
            return True
    return False


def test_optimal_play_never_loses_tic_tac_toe():
    others = {
        "random": opponents.random_player,
        "optimal": opponents.optimal_player,
        "minimax": opponents.minimax_player(2),
    }
    game = pettingzoo.make("aec", "rllm/TicTacToe-v0")
    for side, (name, other) in product(("player_0", "player_1"), others.items()):
        results = []
        for seed in range(40):
            game.reset(seed=seed)
            players = dict.fromkeys(game.agents, other) | {side: opponents.optimal_player}
            results.append(play(game, players, seed)[side])
        assert min(results) >= 0, (side, name)
        if name == "optimal":
            assert set(results) == {0.0}, side
        if name == "random":
            assert sum(results) > 20, side


def test_the_value_of_tic_tac_toe_is_a_draw_and_every_position_agrees_with_brute_force():
    seen, stack = set(), [TicTacToeBoard()]
    while stack:
        board = stack.pop()
        if board in seen:
            continue
        seen.add(board)
        assert TicTacToeBoard.parse(board.text()) == board
        rows = [board.cells[i : i + 3] for i in (0, 3, 6)]
        winners = [side for side, mark in enumerate("XO") if line_exists(rows, mark, 3)]
        assert board.winner == (winners[0] if winners else None)
        stack += [board.after(move) for move in board.moves()]
    assert len(seen) == 5478
    assert TicTacToeBoard().value() == 0


def test_minimax_sees_a_win_and_a_threat_within_its_depth():
    rng = random.Random(0)
    for text, move in (("tic-tac-toe XX./OO./...", "3"), ("tic-tac-toe X.X/O../...", "2")):
        assert opponents.minimax_player(2)({"position": text}, rng) == move
    with pytest.raises(ValueError, match="depth=0"):
        opponents.minimax_player(0)
    with pytest.raises(TaskError, match="'position'"):
        opponents.random_player({}, rng)


def test_the_solver_agrees_with_brute_force():
    for columns, rows, connect in ((4, 3, 3), (3, 4, 3), (3, 3, 3), (4, 3, 4), (2, 5, 2)):
        assert_the_solver_agrees_with_brute_force(columns, rows, connect)


def assert_the_solver_agrees_with_brute_force(columns, rows, connect):
    start = ConnectFourBoard(make_shape(columns, rows, connect))
    solver, rng = Solver(start.shape), random.Random(f"{columns}{rows}{connect}")
    for _ in range(100):
        board = start
        for _ in range(rng.randrange(columns * rows)):
            if board.is_over:
                break
            board = board.after(rng.choice(board.moves()))
        assert ConnectFourBoard.parse(board.text()) == board
        assert ConnectFourBoard.parse(board.canonical().text()).canonical() == board.canonical()
        lines = board.text().split()[1].split("/")
        winners = [side for side, mark in enumerate("XO") if line_exists(lines, mark, connect)]
        assert board.winner == (winners[0] if winners else None)
        if not board.is_over:
            assert solver.value(board.mine, board.all_) == brute_force(board), board.text()


def test_the_solver_agrees_with_tromps_table():
    # https://tromp.github.io/c4/c4.html: who wins on boards of other sizes
    values = {size: ConnectFourBoard(make_shape(*size, 4)).value() for size in ((4, 4), (5, 4))}
    assert values == {(4, 4): 0, (5, 4): 0}


@pytest.mark.long
def test_the_oracle_never_loses_connect_four_on_the_default_board():
    game = pettingzoo.make("aec", "rllm/ConnectFour-v0")
    for seed in range(2):
        game.reset(seed=seed)
        side, other = ("player_0", "player_1") if seed % 2 else ("player_1", "player_0")
        players = {side: opponents.optimal_player, other: opponents.minimax_player(2)}
        assert play(game, players, seed)[side] >= 0


def test_a_board_that_is_too_large_is_an_error_in_bounded_time():
    board = ConnectFourBoard(make_shape(7, 6, 4))
    with pytest.raises(TooManyPositions, match="7 x 6"):
        Solver(board.shape, max_positions=2_000).value(board.mine, board.all_)


@pytest.mark.parametrize("game_id", ["rllm/TicTacToe-v0", "rllm/ConnectFour-v0"])
def test_exactly_the_legal_moves_are_accepted(game_id):
    game, rng = pettingzoo.make("aec", game_id), random.Random(1)
    for seed in range(2):
        game.reset(seed=seed)
        while game.agents and not any(game.terminations.values()):
            legal = game.infos[game.agent_selection]["legal_moves"].split()
            for move in map(str, range(12)):
                copy = game.fork()
                before = copy.board
                copy.step(move)
                agent = game.agent_selection
                assert copy.infos[agent]["invalid_action"] == (move not in legal)
                assert (copy.board == before) == (move not in legal)
            game.step(rng.choice(legal))


def test_an_illegal_move_is_explained_and_the_third_in_a_row_loses():
    game = pettingzoo.make("aec", "rllm/TicTacToe-v0")
    game.reset(seed=0)
    game.step("5")
    for _ in range(2):
        game.step("```5```")
        assert "square 5 is taken" in game.observe("player_1")["text"]
        assert game.agent_selection == "player_1"
    game.step("I resign")
    assert game.rewards == {"player_0": 1.0, "player_1": -1.0}
    assert game.infos["player_1"]["stop_reason"] == "invalid_action"
    assert game.infos["player_0"]["stop_reason"] == "success"


def test_moves_are_parsed_from_the_last_block_or_the_reply_and_anything_else_is_invalid():
    moves = ("5", "```5```", "<action>5</action>", "<think>9</think> 5.", "I take it.\n```move 5```", "Square 5")
    others = ("", "5 or 6", "55", "０", "٥", "five", "<think>5", "```5``` no ```4 and 5```", "5" * 5000)
    game = pettingzoo.make("aec", "rllm/TicTacToe-v0")
    found = {}
    for reply in (*moves, *others):
        game.reset(seed=0)
        game.step(reply)
        found[reply] = game.board.cells, game.infos["player_0"]["invalid_action"]
    assert found == dict.fromkeys(moves, ("....X....", False)) | dict.fromkeys(others, ("." * 9, True))


@pytest.mark.parametrize("game_id", ["rllm/TicTacToe-v0", "rllm/ConnectFour-v0"])
def test_splits_share_no_position_even_mirrored(game_id):
    positions = {}
    for split in SPLITS:
        game = pettingzoo.make("aec", game_id, split=split, num_tasks=150)
        positions[split] = {game._parse(task.content).canonical() for task in game.tasks}
        assert len(positions[split]) > 5
    assert not positions["train"] & positions["test"]
    assert not positions["train"] & positions["validation"]
    assert not positions["validation"] & positions["test"]


def test_the_default_start_is_the_empty_board_and_custom_positions_are_used():
    game = pettingzoo.make("aec", "rllm/TicTacToe-v0")
    game.reset(seed=4)
    assert game.task.task_id == "tic_tac_toe/start"
    game = pettingzoo.make("aec", "rllm/TicTacToe-v0", tasks=["tic-tac-toe X../.../..."])
    game.reset(seed=4)
    assert game.agent_selection == "player_1"
    assert game.infos["player_1"]["legal_moves"] == "2 3 4 5 6 7 8 9"


def test_impossible_positions_are_errors():
    positions = {
        TicTacToeBoard: (
            "tic-tac-toe XX./.../...",
            "tic-tac-toe XXX/OOO/...",
            "tic-tac-toe XXX/OO./O..",
            "X",
            "connect-4 ...../..O../.....",
        ),
        ConnectFourBoard: (
            "connect-4 X..../.....",
            "connect-4 ..../O...",
            "connect-9 ....",
            "connect-4 ..../...",
            "connect-2 XX./OO.",
        ),
    }
    for board, texts in positions.items():
        assert_all_raise(TaskError, board.parse, [(text, "") for text in texts])


def test_arguments_without_effect_are_errors():
    with pytest.raises(TaskError, match="opening_moves"):
        pettingzoo.make("aec", "rllm/TicTacToe-v0", opening_moves=2)
    with pytest.raises(ValueError, match="max_invalid"):
        pettingzoo.make("aec", "rllm/TicTacToe-v0", illegal="lose", max_invalid=2)
    with pytest.raises(TaskError, match="connect=5"):
        pettingzoo.make("aec", "rllm/ConnectFour-v0", columns=4, rows=4, connect=5)
