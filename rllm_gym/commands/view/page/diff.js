// The words of two texts that differ, by Myers' algorithm (An O(ND) Difference Algorithm and Its Variations, 1986).

const MOST_EDITS = 1000;
const words = (text) => text.match(/[\p{L}\p{N}_]+\s*|\s+|[^\p{L}\p{N}_\s]\s*/gu) ?? [];

// The pairs of indices of a longest common subsequence; none if there are too many edits.
function commonPairs(one, other) {
  const most = Math.min(one.length + other.length, MOST_EDITS);
  const middle = most + 1;
  const furthest = new Int32Array(2 * most + 3); // by diagonal, the index in "one" that is reached with so many edits
  const trace = [];
  const down = (reached, at, k, edits) => k === -edits || (k !== edits && reached[at - 1] < reached[at + 1]);
  for (let edits = 0; edits <= most; edits++) {
    trace.push(furthest.slice(middle - edits - 1, middle + edits + 2));
    for (let k = -edits; k <= edits; k += 2) {
      let i = down(furthest, middle + k, k, edits) ? furthest[middle + k + 1] : furthest[middle + k - 1] + 1;
      while (i < one.length && i - k < other.length && one[i] === other[i - k]) i++;
      furthest[middle + k] = i;
      if (i < one.length || i - k < other.length) continue;
      const pairs = [];
      for (let left = edits, j = i - k; i > 0 || j > 0; left--) {
        const diagonal = i - j, at = left + 1 + diagonal;
        const start = left === 0 ? 0 : down(trace[left], at, diagonal, left) ? trace[left][at + 1] : trace[left][at - 1] + 1;
        while (i > start) pairs.push([--i, --j]);
        if (left > 0) down(trace[left], at, diagonal, left) ? j-- : i--;
      }
      return pairs;
    }
  }
  return [];
}

// Returns the parts of each text: {text, common}.
export function differences(first, second) {
  const [one, other] = [words(first), words(second)];
  const shorter = Math.min(one.length, other.length);
  let start = 0, end = 0;
  while (start < shorter && one[start] === other[start]) start++;
  while (end < shorter - start && one[one.length - 1 - end] === other[other.length - 1 - end]) end++;
  const pairs = commonPairs(one.slice(start, one.length - end), other.slice(start, other.length - end));
  return [one, other].map((own, side) => {
    const common = new Set(pairs.map((pair) => start + pair[side]));
    const parts = [];
    own.forEach((text, index) => {
      const same = index < start || index >= own.length - end || common.has(index);
      if (parts.at(-1)?.common === same) parts.at(-1).text += text;
      else parts.push({ text, common: same });
    });
    return parts;
  });
}
