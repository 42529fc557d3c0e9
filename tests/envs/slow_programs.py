"""Right but slow functions for the problems of difficulty 6 to 8: at least two for each source, by its name.

They are what people write first: all pairs, all runs, a search through the list for every element, repeated sorting.
The test replaces the function of the reference program by their source text.
"""


# mypy: ignore-errors

SLOW_PROGRAMS = {
    "divisible_pairs": [
        """
def divisible_pairs(values, k):
    pairs = 0
    for i in range(len(values)):
        for j in range(i + 1, len(values)):
            if (values[i] + values[j]) % k == 0:
                pairs += 1
    return pairs
""",
        """
def divisible_pairs(values, k):
    from itertools import combinations
    return sum((a + b) % k == 0 for a, b in combinations(values, 2))
""",
    ],
    "great_drops": [
        """
def great_drops(values, gap):
    return sum(values[i] - values[j] > gap for i in range(len(values)) for j in range(i + 1, len(values)))
""",
        """
def great_drops(values, gap):
    drops = 0
    for j, value in enumerate(values):
        drops += len([other for other in values[:j] if other > value + gap])
    return drops
""",
    ],
    "runs_with_sum": [
        """
def runs_with_sum(values, target):
    runs = 0
    for i in range(len(values)):
        total = 0
        for j in range(i, len(values)):
            total += values[j]
            runs += total == target
    return runs
""",
        """
def runs_with_sum(values, target):
    return sum(sum(values[i:j]) == target for i in range(len(values)) for j in range(i + 1, len(values) + 1))
""",
        """
def runs_with_sum(values, target):
    sums = [0]
    for value in values:
        sums.append(sums[-1] + value)
    return sum(sums[j + 1:].count(sums[j] + target) for j in range(len(sums)))
""",
    ],
    "runs_of_few_kinds": [
        """
def runs_of_few_kinds(values, kinds, modulus):
    runs = 0
    for i in range(len(values)):
        seen = set()
        for j in range(i, len(values)):
            seen.add(values[j])
            if len(seen) > kinds:
                break
            runs += 1
    return runs % modulus
""",
        """
def runs_of_few_kinds(values, kinds, modulus):
    runs = start = 0
    for end in range(len(values)):
        while len(set(values[start:end + 1])) > kinds:
            start += 1
        runs += end - start + 1
    return runs % modulus
""",
    ],
    "sum_of_maxima": [
        """
def sum_of_maxima(values, width, modulus):
    return sum(max(values[i:i + width]) for i in range(len(values) - width + 1)) % modulus
""",
        """
def sum_of_maxima(values, width, modulus):
    window, total = list(values[:width]), 0
    for value in values[width:]:
        total += max(window)
        window.pop(0)
        window.append(value)
    return (total + max(window)) % modulus
""",
    ],
    "calm_runs": [
        """
def calm_runs(values, spread):
    runs = 0
    for i in range(len(values)):
        low = high = values[i]
        for j in range(i, len(values)):
            low, high = min(low, values[j]), max(high, values[j])
            if high - low > spread:
                break
            runs += 1
    return runs
""",
        """
def calm_runs(values, spread):
    runs = start = 0
    for end in range(len(values)):
        while max(values[start:end + 1]) - min(values[start:end + 1]) > spread:
            start += 1
        runs += end - start + 1
    return runs
""",
    ],
    "heaviest_moment": [
        """
def heaviest_moment(visits, extra):
    return max((sum(w for s, e, w in visits if s <= start < e + extra) for start, _, _ in visits), default=0)
""",
        """
def heaviest_moment(visits, extra):
    at = [0] * (max((end for _, end, _ in visits), default=0) + extra + 1)
    for start, end, weight in visits:
        for moment in range(start, end + extra):
            at[moment] += weight
    return max(at)
""",
    ],
    "joining_cost": [
        """
def joining_cost(piles, tax):
    piles, cost = sorted(piles), 0
    while len(piles) > 1:
        joined = piles.pop(0) + piles.pop(0)
        cost += joined + tax
        piles.append(joined)
        piles.sort()
    return cost
""",
        """
def joining_cost(piles, tax):
    piles, cost = list(piles), 0
    while len(piles) > 1:
        first = min(piles)
        piles.remove(first)
        second = min(piles)
        piles.remove(second)
        piles.append(first + second)
        cost += first + second + tax
    return cost
""",
    ],
    "best_bookings": [
        """
def best_bookings(bookings, rest):
    done = []
    for start, end, pay in sorted(bookings, key=lambda booking: booking[1]):
        best = pay
        for other_end, other in done:
            if other_end + rest <= start and other + pay > best:
                best = other + pay
        done.append((end, best))
    return max((best for _, best in done), default=0)
""",
        """
def best_bookings(bookings, rest):
    bookings = sorted(bookings)
    best = [0] * (len(bookings) + 1)
    for i in range(len(bookings) - 1, -1, -1):
        start, end, pay = bookings[i]
        j = i + 1
        while j < len(bookings) and bookings[j][0] < end + rest:
            j += 1
        best[i] = max(best[i + 1], pay + best[j])
    return best[0]
""",
    ],
    "links_until_joined": [
        """
def links_until_joined(n, links, left):
    group, groups = list(range(n)), n
    if groups <= left:
        return 0
    for count, (a, b) in enumerate(links, start=1):
        if group[a] != group[b]:
            old, new = group[a], group[b]
            group = [new if member == old else member for member in group]
            groups -= 1
            if groups <= left:
                return count
    return -1
""",
        """
def links_until_joined(n, links, left):
    def groups_with(count):
        neighbours = [[] for _ in range(n)]
        for a, b in links[:count]:
            neighbours[a].append(b)
            neighbours[b].append(a)
        seen, groups = [False] * n, 0
        for point in range(n):
            if not seen[point]:
                groups += 1
                stack = [point]
                seen[point] = True
                while stack:
                    for other in neighbours[stack.pop()]:
                        if not seen[other]:
                            seen[other] = True
                            stack.append(other)
        return groups
    for count in range(len(links) + 1):
        if groups_with(count) <= left:
            return count
    return -1
""",
    ],
    "distance_total": [
        """
def distance_total(n, roads, modulus):
    distance = [None] * n
    distance[0] = 0
    changed = True
    while changed:
        changed = False
        for a, b, length in roads:
            for one, other in ((a, b), (b, a)):
                if distance[one] is not None and (
                    distance[other] is None or distance[one] + length < distance[other]
                ):
                    distance[other] = distance[one] + length
                    changed = True
    return sum(one for one in distance if one is not None) % modulus
""",
        """
def distance_total(n, roads, modulus):
    neighbours = [[] for _ in range(n)]
    for a, b, length in roads:
        neighbours[a].append((b, length))
        neighbours[b].append((a, length))
    far = float("inf")
    distance, left, total = [far] * n, set(range(n)), 0
    distance[0] = 0
    while left:
        town = min(left, key=distance.__getitem__)
        left.remove(town)
        if distance[town] == far:
            break
        total += distance[town]
        for other, length in neighbours[town]:
            distance[other] = min(distance[other], distance[town] + length)
    return total % modulus
""",
    ],
    "longest_climb": [
        """
def longest_climb(values, step):
    best = []
    for i, value in enumerate(values):
        best.append(1 + max((best[j] for j in range(i) if value - values[j] >= step), default=0))
    return max(best, default=0)
""",
        """
def longest_climb(values, step):
    best = [1] * len(values)
    for i in range(len(values)):
        for j in range(i):
            if values[j] + step <= values[i] and best[j] + 1 > best[i]:
                best[i] = best[j] + 1
    return max(best) if best else 0
""",
    ],
    "waiting_total": [
        """
def waiting_total(values, modulus):
    total = 0
    for i in range(len(values)):
        for j in range(i + 1, len(values)):
            if values[j] > values[i]:
                total += j - i
                break
    return total % modulus
""",
        """
def waiting_total(values, modulus):
    return sum(
        next((k for k, other in enumerate(values[i:]) if other > value), 0) for i, value in enumerate(values)
    ) % modulus
""",
    ],
    "sum_of_minima": [
        """
def sum_of_minima(values, modulus):
    total = 0
    for i in range(len(values)):
        least = values[i]
        for j in range(i, len(values)):
            least = min(least, values[j])
            total += least
    return total % modulus
""",
        """
def sum_of_minima(values, modulus):
    total = 0
    for i, value in enumerate(values):
        left, right = i, i
        while left > 0 and values[left - 1] > value:
            left -= 1
        while right + 1 < len(values) and values[right + 1] >= value:
            right += 1
        total += value * (i - left + 1) * (right - i + 1)
    return total % modulus
""",
    ],
    "palindrome_count": [
        """
def palindrome_count(text, least):
    count = 0
    for i in range(len(text)):
        for j in range(i + least, len(text) + 1):
            count += text[i:j] == text[i:j][::-1]
    return count
""",
        """
def palindrome_count(text, least):
    count = 0
    for middle in range(2 * len(text) - 1):
        left, right = middle // 2, (middle + 1) // 2
        while left >= 0 and right < len(text) and text[left] == text[right]:
            count += right - left + 1 >= least
            left, right = left - 1, right + 1
    return count
""",
    ],
    "affordable_subsets": [
        """
def affordable_subsets(prices, budget, modulus):
    def count(place, left):
        if left < 0:
            return 0
        return 1 if place == len(prices) else count(place + 1, left) + count(place + 1, left - prices[place])
    return count(0, budget) % modulus
""",
        """
def affordable_subsets(prices, budget, modulus):
    ways = {0: 1}
    for price in prices:
        more = dict(ways)
        for total, count in ways.items():
            if total + price <= budget:
                more[total + price] = more.get(total + price, 0) + count
        ways = more
    return sum(ways.values()) % modulus
""",
    ],
    "far_term": [
        """
def far_term(n, p, q, r, modulus):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, (p * b + q * a + r) % modulus
    return a
""",
        """
def far_term(n, p, q, r, modulus):
    terms = [0, 1]
    while len(terms) <= n:
        terms.append((p * terms[-1] + q * terms[-2] + r) % modulus)
    return terms[n]
""",
    ],
}
