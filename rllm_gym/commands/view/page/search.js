// Search for words in texts, as the index does: without case and accents; a word also matches longer ones that begin so,
// and a phrase in quotes does not.

const MOST_MARKED = 1000;
const SEPARATORS = /[^\p{L}\p{N}\p{Co}]+/gu;
const pieces = (query) => [...query.matchAll(/"([^"]*)"|(\S+)/g)].map(([, quoted, word]) => ({ text: quoted || word, quoted: Boolean(quoted) }));

// A text as its words, between single spaces.
export const plain = (text) => ` ${text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase().replace(SEPARATORS, " ").trim()} `;

// Whether all pieces of a query are in plain texts.
export function matches(query, texts) {
  const wanted = pieces(query).map(({ text, quoted }) => (quoted ? plain(text) : plain(text).trimEnd())).filter((text) => text.trim());
  if (!wanted.length) throw new Error(`${query} has no word to search for`);
  return wanted.every((text) => texts.some((one) => one.includes(text)));
}

// Marks what the queries found in an element, and returns the message with the first, scrolled to it.
export function markFound(root, queries) {
  if (!("highlights" in CSS)) return undefined;
  CSS.highlights.delete("found");
  const patterns = queries.flatMap(pieces).map(({ text }) => plain(text).trim().split(" ").join("[^\\p{L}\\p{N}]+")).filter(Boolean);
  if (!patterns.length) return undefined;
  const pattern = new RegExp(`(?<![\\p{L}\\p{N}])(?:${patterns.join("|")})`, "giu");
  const found = [];
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT, (node) =>
    node.parentElement.closest(".message pre, .reply pre") ? NodeFilter.FILTER_ACCEPT : NodeFilter.FILTER_REJECT);
  while (found.length < MOST_MARKED && walker.nextNode())
    for (const match of walker.currentNode.data.matchAll(pattern)) {
      const range = new Range();
      range.setStart(walker.currentNode, match.index);
      range.setEnd(walker.currentNode, match.index + match[0].length);
      found.push(range);
    }
  if (!found.length) return undefined;
  CSS.highlights.set("found", new Highlight(...found));
  const box = found[0].startContainer.parentElement.closest(".message, .reply");
  box.scrollTop += found[0].getBoundingClientRect().top - box.getBoundingClientRect().top - 60;
  return box;
}
