"""Sources over graphs: towns and roads, tasks and their dependencies."""

# The source text of the functions is also the reference solution: plain Python, without annotations.
# mypy: ignore-errors

from __future__ import annotations

import random

from rllm_gym.envs.code.families.building_blocks import Source


def road_distances(n, roads, start):
    from heapq import heappop, heappush

    neighbours = [[] for _ in range(n)]
    for a, b, length in roads:
        neighbours[a].append((b, length))
        neighbours[b].append((a, length))
    distances, queue = [-1] * n, [(0, start % n)]
    while queue:
        distance, town = heappop(queue)
        if distances[town] >= 0:
            continue
        distances[town] = distance
        for other, length in neighbours[town]:
            if distances[other] < 0:
                heappush(queue, (distance + length, other))
    return distances


def one_way_hops(n, links, start):
    hops, frontier, count = [-1] * n, [start % n], 0
    hops[start % n] = 0
    while frontier:
        count += 1
        reached = []
        for a, b in links:
            if a in frontier and hops[b] < 0:
                hops[b] = count
                reached.append(b)
        frontier = reached
    return hops


def group_sizes(n, links):
    group = list(range(n))
    for a, b in links:
        old, new = group[a], group[b]
        group = [new if member == old else member for member in group]
    return sorted(group.count(member) for member in set(group))


def link_counts(n, links):
    partners = [set() for _ in range(n)]
    for a, b in links:
        if a != b:
            partners[a].add(b)
            partners[b].add(a)
    return [len(others) for others in partners]


def working_order(n, waits):
    before = [set() for _ in range(n)]
    for first, second in waits:
        before[second].add(first)
    order = []
    while len(order) < n:
        ready = [job for job in range(n) if job not in order and before[job] <= set(order)]
        if not ready:
            return order
        order.append(min(ready))
    return order


def working_order_last(n, waits):
    before = [set() for _ in range(n)]
    for first, second in waits:
        before[second].add(first)
    order = []
    while len(order) < n:
        ready = [job for job in range(n) if job not in order and before[job] <= set(order)]
        if not ready:
            return order
        order.append(max(ready))
    return order


def cheapest_network(n, roads):
    group, chosen = list(range(n)), []
    for length, a, b in sorted((length, a, b) for a, b, length in roads):
        if group[a] != group[b]:
            old, new = group[a], group[b]
            group = [new if member == old else member for member in group]
            chosen.append(length)
    return chosen


def levels_of_tree(parents):
    depths = []
    for node in range(len(parents)):
        depth = 0
        while parents[node] >= 0:
            node = parents[node]
            depth += 1
        depths.append(depth)
    return depths


def subtree_sizes(parents):
    sizes = [0] * len(parents)
    for node in range(len(parents)):
        while node >= 0:
            sizes[node] += 1
            node = parents[node]
    return sizes


def walk_links(jumps, start, count):
    visited, place = [], start % len(jumps) if jumps else 0
    for _ in range(count if jumps else 0):
        visited.append(place)
        place = jumps[place] % len(jumps)
    return visited


def _roads(rng: random.Random, size: int) -> tuple[int, list[list[int]]]:
    n = rng.randint(4, 5 + size)
    count = rng.randint(n - 2, 2 * n)
    return n, [[rng.randrange(n), rng.randrange(n), rng.randint(1, 9)] for _ in range(count)]


def _links(rng: random.Random, size: int) -> tuple[int, list[list[int]]]:
    n = rng.randint(4, 5 + size)
    return n, [[rng.randrange(n), rng.randrange(n)] for _ in range(rng.randint(n // 2, 2 * n))]


def _waits(rng: random.Random, size: int) -> tuple[int, list[list[int]]]:
    n = rng.randint(4, 5 + size)
    order = list(range(n))
    rng.shuffle(order)
    pairs = []
    for _ in range(rng.randint(n // 2, 2 * n)):
        i, j = sorted(rng.sample(range(n), 2))
        pairs.append([order[i], order[j]])
    if rng.random() < 0.2:
        pairs.append(pairs[0][::-1])
    return n, pairs


def _parents(rng: random.Random, size: int) -> tuple[list[int]]:
    n = rng.randint(4, 6 + 2 * size)
    return ([-1] + [rng.randrange(max(0, node - 4), node) for node in range(1, n)],)


def _jumps(rng: random.Random, size: int) -> tuple[list[int]]:
    return ([rng.randrange(0, 30) for _ in range(rng.randint(4, 6 + size))],)


_START = {"start": range(4)}
_TOWNS = (("n", "number"), ("roads", "lists"))
_NODES = (("n", "number"), ("links", "lists"))
_WAITS = (("n", "number"), ("waits", "lists"))
_ROADS_SAY = (
    "There are `n` towns, numbered from 0 to n - 1. `roads` lists two-way roads as [a, b, length]; several roads may "
    "join the same towns, and a road may lead from a town to itself."
)
_LINKS_SAY = (
    "There are `n` points, numbered from 0 to n - 1. `links` lists {} [a, b]; a pair may occur twice, and a may be b."
)
_WAITS_SAY = (
    "There are `n` jobs, numbered from 0 to n - 1. Each pair [a, b] in `waits` says that a has to be done before b."
)
_TREE_SAY = (
    "`parents` describes a tree: `parents[i]` is the node above node i (always one with a smaller number), and -1 for "
    "node 0, the root."
)

SOURCES: dict[str, tuple[Source, ...]] = {
    "graph_distances": (
        Source(road_distances, _TOWNS, "numbers", _ROADS_SAY, "Make a list of the length of the shortest way from town "
               "{start} (if n is at most {start}: town {start} modulo n) to each town, in the order of the towns; -1 "
               "where there is no way.", _roads, ((1, []), (3, []), (5, [[0, 1, 4], [1, 0, 2], [3, 3, 1]])),
               _START, 3),
        Source(one_way_hops, _NODES, "numbers", _LINKS_SAY.format("one-way connections"), "Make a list of the least "
               "number of connections that lead from point {start} (if n is at most {start}: point {start} modulo n) "
               "to each point, in the order of the points; -1 where none do.", _links,
               ((1, []), (2, [[1, 0]]), (4, [[0, 0], [0, 1], [1, 2], [2, 0]])), _START, 2),
    ),
    "graph_groups": (
        Source(group_sizes, _NODES, "numbers", _LINKS_SAY.format("two-way connections"), "Points that are connected, "
               "directly or through others, form a group. Make a list of the sizes of the groups, in ascending order.",
               _links, ((1, []), (3, []), (4, [[0, 1], [1, 0], [2, 2]])), {}, 2),
        Source(link_counts, _NODES, "numbers", _LINKS_SAY.format("two-way connections"), "Make a list of the number of "
               "different other points that each point is directly connected with, in the order of the points.",
               _links, ((1, [[0, 0]]), (3, []), (3, [[0, 1], [1, 0]])), {}, 1),
        Source(cheapest_network, _TOWNS, "numbers", _ROADS_SAY, "Choose roads of the least total length so that towns "
               "that can be reached from each other by all roads still can be by those chosen. Make a list of the "
               "lengths of the chosen roads, in ascending order.", _roads,
               ((1, [[0, 0, 3]]), (3, []), (3, [[0, 1, 5], [0, 1, 2], [1, 2, 2], [0, 2, 2]])), {}, 3),
    ),
    "graph_order": (
        Source(working_order, _WAITS, "numbers", _WAITS_SAY, "Do the jobs one after the other, always the one with the "
               "least number of those not yet done whose predecessors are all done, until there is none. Make a list "
               "of the jobs in the order in which they are done.", _waits,
               ((1, []), (3, [[2, 1], [1, 0]]), (3, [[0, 1], [1, 0]])), {}, 2),
        Source(working_order_last, _WAITS, "numbers", _WAITS_SAY, "Do the jobs one after the other, always the one "
               "with the greatest number of those not yet done whose predecessors are all done, until there is none. "
               "Make a list of the jobs in the order in which they are done.", _waits,
               ((1, []), (3, [[2, 1], [1, 0]]), (3, [[0, 1], [1, 0]])), {}, 2),
    ),
    "trees": (
        Source(levels_of_tree, (("parents", "numbers"),), "numbers", _TREE_SAY, "Make a list of the number of steps "
               "from each node to the root, in the order of the nodes.", _parents, (([-1],), ([-1, 0, 1, 2, 3],)), {},
               1),
        Source(subtree_sizes, (("parents", "numbers"),), "numbers", _TREE_SAY, "Make a list of the number of nodes "
               "below each node, itself included, in the order of the nodes.", _parents,
               (([-1],), ([-1, 0, 0, 0, 0],)), {}, 2),
        Source(walk_links, (("jumps", "numbers"),), "numbers", "`jumps` is a list of integers of at least 0.", "Begin "
               "at index {start} (modulo the length of the list) and go {count} times from index i to the index "
               "jumps[i] modulo the length. Make a list of the {count} indices that are visited, the first included, "
               "the one that is reached last not (an empty list, if `jumps` is empty).", _jumps,
               (([],), ([7],), ([1, 0],)), {"start": range(6), "count": range(5, 12)}, 2),
    ),
}  # fmt: skip
