"""Sources that simulate a process: robots, queues, accounts, caches, circles of people."""

# The source text of the functions is also the reference solution: plain Python, without annotations.
# mypy: ignore-errors

from __future__ import annotations

import random

from rllm_gym.envs.code.families import inputs
from rllm_gym.envs.code.families.building_blocks import Source


def robot_distances(moves, width):
    x = y = 0
    distances = []
    for move in moves:
        if move == "U":
            y = min(y + 1, width)
        elif move == "D":
            y = max(y - 1, -width)
        elif move == "L":
            x = max(x - 1, -width)
        elif move == "R":
            x = min(x + 1, width)
        distances.append(abs(x) + abs(y))
    return distances


def turning_robot(moves, step):
    x, y, dx, dy = 0, 0, 0, 1
    visited = [(0, 0)]
    for move in moves:
        if move == "L":
            dx, dy = -dy, dx
        elif move == "R":
            dx, dy = dy, -dx
        else:
            for _ in range(step):
                x, y = x + dx, y + dy
                visited.append((x, y))
    return [visited.count(place) for place in dict.fromkeys(visited)]


def circle_game(n, k):
    people, out, place = list(range(1, n + 1)), [], 0
    while people:
        place = (place + k - 1) % len(people)
        out.append(people.pop(place))
    return out


def round_robin(times, quantum):
    queue, clock, finished = list(enumerate(times)), 0, [0] * len(times)
    while queue:
        job, left = queue.pop(0)
        used = min(left, quantum)
        clock += used
        if left > used:
            queue.append((job, left - used))
        else:
            finished[job] = clock
    return finished


def counters_open(times, counters):
    free, ends = [0] * counters, []
    for time in times:
        counter = free.index(min(free))
        free[counter] += time
        ends.append(free[counter])
    return ends


def cache_misses(requests, room):
    cache, misses = [], []
    for index, page in enumerate(requests):
        if page in cache:
            cache.remove(page)
        else:
            misses.append(index)
            if len(cache) == room:
                cache.pop(0)
        cache.append(page)
    return misses


def first_in_misses(requests, room):
    cache, misses = [], []
    for index, page in enumerate(requests):
        if page not in cache:
            misses.append(index)
            if len(cache) == room:
                cache.pop(0)
            cache.append(page)
    return misses


def account_balances(orders, credit):
    balances = {}
    for order in orders:
        action, name, amount = order.split()
        balance = balances.get(name, 0)
        if action == "deposit":
            balances[name] = balance + int(amount)
        elif action == "withdraw" and balance - int(amount) >= -credit:
            balances[name] = balance - int(amount)
        else:
            balances[name] = balance
    return [f"{name}={balances[name]}" for name in sorted(balances)]


def bouncing_ball(width, steps, speed):
    position, direction, places = 0, 1, []
    for _ in range(steps):
        for _ in range(speed):
            if width > 1:
                if not 0 <= position + direction < width:
                    direction = -direction
                position += direction
        places.append(position)
    return places


def lamp_states(n, rounds):
    on = [False] * n
    for step in range(1, rounds + 1):
        for lamp in range(step - 1, n, step):
            on[lamp] = not on[lamp]
    return [lamp + 1 for lamp in range(n) if on[lamp]]


def cellular_rows(cells, rule, steps):
    for _ in range(steps):
        padded = "." + cells + "."
        cells = "".join(
            "#" if rule >> int(padded[i - 1 : i + 2].replace("#", "1").replace(".", "0"), 2) & 1 else "."
            for i in range(1, len(padded) - 1)
        )
    return cells


def marble_runs(marbles, limit):
    piles = list(marbles)
    for index in range(len(piles)):
        over = max(0, piles[index] - limit)
        piles[index] -= over
        if index + 1 < len(piles):
            piles[index + 1] += over
    return piles


def tug_of_war(scores, share):
    ratings = []
    for index, score in enumerate(scores):
        before = ratings[-1] if ratings else 0
        ratings.append(before + (score - before) * share // 10 if index else score)
    return ratings


def _moves(letters: str):
    def moves(rng: random.Random, size: int) -> tuple[str]:
        return ("".join(rng.choice(letters) for _ in range(rng.randint(4, 8 + 5 * size))),)

    return moves


def _count(rng: random.Random, size: int) -> tuple[int]:
    return (rng.randint(2, 6 + 4 * size),)


def _times(rng: random.Random, size: int) -> tuple[list[int]]:
    return ([rng.randint(1, 9) for _ in range(rng.randint(3, 5 + 2 * size))],)


def _requests(rng: random.Random, size: int) -> tuple[list[int]]:
    return ([rng.randint(1, 5) for _ in range(rng.randint(6, 10 + 3 * size))],)


def _orders(rng: random.Random, size: int) -> tuple[list[str]]:
    names = rng.sample(("ann", "bob", "cy", "dan", "eve"), rng.randint(1, 3))
    return (
        [
            f"{rng.choice(('deposit', 'withdraw', 'withdraw'))} {rng.choice(names)} {rng.randint(1, 30)}"
            for _ in range(rng.randint(3, 5 + 3 * size))
        ],
    )


def _ball(rng: random.Random, size: int) -> tuple[int, int]:
    return rng.randint(2, 5 + size), rng.randint(4, 8 + 2 * size)


def _lamps(rng: random.Random, size: int) -> tuple[int, int]:
    return rng.randint(3, 8 + 5 * size), rng.randint(1, 6 + 2 * size)


def _cells(rng: random.Random, size: int) -> tuple[str]:
    return ("".join(rng.choice("#.") for _ in range(rng.randint(5, 8 + 3 * size))),)


def _values(rng: random.Random, size: int) -> tuple[list[int]]:
    return (inputs.numbers(rng, size),)


def _piles(rng: random.Random, size: int) -> tuple[list[int]]:
    return ([rng.randint(0, 15) for _ in range(rng.randint(4, 6 + 2 * size))],)


_PAGES = (("requests", "numbers"),)
_PAGES_SAY = "`requests` lists the numbers of pages in the order in which they are asked for."
_PAGE_EDGES = (([],), ([1],), ([1, 1, 1],), ([1, 2, 3, 4, 5, 1, 2, 3, 4, 5],))

SOURCES: dict[str, tuple[Source, ...]] = {
    "robots": (
        Source(robot_distances, (("moves", "text"),), "numbers", "A robot stands at (0, 0). `moves` is a string of "
               "moves: U raises y by 1, D lowers it, R raises x by 1, L lowers it.", "A move that would make x or y "
               "less than -{width} or greater than {width} is not made. Make a list of |x| + |y| after each character "
               "of `moves`.", _moves("UDLR"), (("",), ("UUUUUUUU",), ("LRLRDDDD",)), {"width": (1, 2, 3, 4, 5)}, 1),
        Source(turning_robot, (("moves", "text"),), "numbers", "A robot stands at (0, 0) and looks up, along y. "
               "`moves` is a string of L (turn left by a quarter), R (turn right) and F (go forward).", "Each F is "
               "{step} steps of length 1. Make a list of how often each place was visited, the beginning included, in "
               "the order of the first visits.", _moves("FFFLR"), (("",), ("LLLL",), ("FRFRFRF",)),
               {"step": (1, 2, 3)}, 2),
    ),
    "queues": (
        Source(circle_game, (("n", "number"),), "numbers", "`n` people, numbered from 1, stand in a circle.",
               "Counting begins with person 1; every {k_th} person leaves, and counting goes on with the next, until "
               "nobody is left. Make a list of the numbers in the order in which they leave.", _count, ((1,), (2,),
               (7,)),
               {"k": range(2, 10)}, 2),
        Source(round_robin, (("times", "numbers"),), "numbers", "Job i takes times[i] units of time, at least 1.",
               "The jobs wait in a queue in the order of their numbers. The first works for {quantum} units, or until "
               "it is done if that is sooner; if it is not done it goes to the end of the queue. Make a list of the "
               "times at which the jobs are done, in the order of their numbers; the clock begins at 0.", _times,
               (([],), ([1],), ([3, 3, 3],)), {"quantum": (1, 2, 3, 4)}, 2),
        Source(counters_open, (("times", "numbers"),), "numbers",
               "Customer i needs times[i] units of time, at least 1.",
               "There are {counters} counters. One after the other, the customers go to the counter that is free "
               "earliest, of several the one with the lowest number. Make a list of the times at which the customers "
               "are done, in their order; the clock begins at 0.", _times, (([],), ([4],), ([2, 2, 2, 2],)),
               {"counters": (1, 2, 3, 4)}, 2),
    ),
    "caches": (
        Source(cache_misses, _PAGES, "numbers", _PAGES_SAY, "A cache holds {room} pages. A page that is not in it is "
               "put into it, if it is full in place of the page that was not asked for the longest. Make a list of the "
               "indices of the requests (from 0) whose page was not in the cache.", _requests, _PAGE_EDGES,
               {"room": (1, 2, 3, 4)}, 3),
        Source(first_in_misses, _PAGES, "numbers", _PAGES_SAY, "A cache holds {room} pages. A page that is not in it "
               "is put into it, if it is full in place of the page that was put in first. Make a list of the indices "
               "of the requests (from 0) whose page was not in the cache.", _requests, _PAGE_EDGES,
               {"room": (1, 2, 3, 4)}, 2),
    ),
    "accounts": (
        Source(account_balances, (("orders", "rows"),), "words", "`orders` lists orders of the form \"deposit NAME "
               "AMOUNT\" or \"withdraw NAME AMOUNT\". Every account begins with 0.", "Carry the orders out one after "
               "the other; one that would leave an account with less than -{credit} is not carried out. Make a list of "
               "NAME=BALANCE for every name in the orders, sorted by name.", _orders,
               ((["withdraw ann 1"],), (["deposit bob 5", "withdraw bob 5"],), (["withdraw cy 30", "deposit ann 2"],)),
               {"credit": (0, 5, 10, 20)}, 1),
    ),
    "machines": (
        Source(bouncing_ball, (("width", "number"), ("steps", "number")), "numbers", "A ball is at place 0 of `width` "
               "places in a row (0 to width - 1, at least 2) and moves to the right.", "`steps` times it moves {speed} "
               "places, one by one; at an end it turns round first. Make a list of its places after each of the "
               "`steps` times.", _ball, ((2, 3), (3, 0), (4, 1)), {"speed": (1, 2, 3, 4)}, 2),
        Source(lamp_states, (("n", "number"), ("rounds", "number")), "numbers", "`n` lamps, numbered from 1, are off.",
               "In round r, for r from 1 to `rounds`, every r-th lamp (number r, 2r, 3r, …) is switched: on if it was "
               "off, off if it was on. Make a list of the numbers of the lamps that are on in the end, in ascending "
               "order.", _lamps, ((1, 1), (5, 0), (4, 9)), {}, 1),
        Source(cellular_rows, (("cells", "text"),), "text", "`cells` is a string of # (alive) and . (dead).", "Then "
               "{steps} times, all at once: write a cell and its two neighbours (outside the string all is dead) from "
               "left to right as a binary number of three digits, 1 for alive; the cell is alive next if that bit of "
               "{rule}, counted from the lowest as bit 0, is 1.", _cells, (("#",), (".....",), ("..#..",)),
               {"rule": (30, 54, 60, 90, 110, 150, 182), "steps": (1, 2, 3, 4)}, 3),
        Source(marble_runs, (("marbles", "numbers"),), "numbers", "`marbles` lists the numbers of marbles in piles "
               "that stand in a row.", "Go through the piles from the left: what a pile has above {limit} goes on to "
               "the next one, and from the last pile away. Make a list of the numbers of marbles in the end.", _piles,
               (([],), ([20],), ([9, 0, 0],)), {"limit": range(2, 10)}, 1),
        Source(tug_of_war, (("scores", "numbers"),), "numbers", "`scores` is a list of integers.", "A rating begins "
               "with the first score. Then, with each further score, it moves by (score - rating) times {share}, "
               "divided by 10 and rounded down. Make a list of the ratings after each score.", _values,
               (([],), ([5],), ([-3, 8],)), {"share": (1, 2, 3, 5, 7, 9)}, 2),
    ),
}  # fmt: skip
