// Finds where an element can be clicked, and does what only a script can do to a field.
//
// Every function returns an object. Its "error" tells the model why the element does not allow this use.

const SET_BY_VALUE = new Set(["date", "time", "month", "week", "datetime-local", "color", "range"]);
const TYPED = new Set(["text", "search", "email", "url", "tel", "password", "number"]);
const FORMATS = {
  date: "YYYY-MM-DD", time: "HH:MM", month: "YYYY-MM", week: "YYYY-Www", "datetime-local": "YYYY-MM-DDTHH:MM",
  color: "#rrggbb",
};

const inView = (x, y) => x >= 0 && y >= 0 && x < innerWidth && y < innerHeight;

function deepest(x, y) {
  let hit = document.elementFromPoint(x, y);
  while (hit) {
    const root = shadowRoot(hit) ?? closedRoots.get(hit);
    const inner = root?.elementFromPoint(x, y);
    if (!inner || inner === hit) break;
    hit = inner;
  }
  return hit;
}

// The parent in the rendered tree.
function above(node) {
  if (nodeType(node) === FRAGMENT) return node.host;
  return (nodeType(node) === ELEMENT && assignedSlot(node)) || parentNode(node);
}

function within(node, element) {
  for (let at = node, steps = 0; at && steps < 1000; at = above(at), steps++) {
    if (at === element) return true;
    // A click on a label is a click on its field, and vice versa for fields that are not rendered.
    if (is(at, "label") && at.control === element) return true;
  }
  return is(element, "label") && element.control === node;
}

// Relative positions in a box: the middle, around it, then edges and corners, which may be left uncovered.
const PLACES = [
  [0.5, 0.5], [0.2, 0.5], [0.8, 0.5], [0.5, 0.2], [0.5, 0.8],
  [0, 0.5], [1, 0.5], [0.5, 0], [0.5, 1], [0, 0], [1, 0], [0, 1], [1, 1],
];
const EDGE_PX = 3;

// Convert a relative position to a coordinate that keeps a small distance from both ends.
function along(start, length, share) {
  const edge = Math.min(EDGE_PX, length / 4);
  return start + Math.min(Math.max(length * share, edge), length - edge);
}

// The positions at which a click may reach an element, likely ones first.
function* places(element) {
  let boxes = [...element.getClientRects()].filter((box) => box.width > 0 && box.height > 0).slice(0, 6);
  if (!boxes.length) boxes = [rectOf(element)].filter((box) => box.width > 0 && box.height > 0);
  for (const [across, down] of PLACES) {
    for (const box of boxes) yield [along(box.left, box.width, across), along(box.top, box.height, down)];
  }
}

function freePlace(element) {
  let cover = null, seen = false, drawn = false;
  for (const [x, y] of places(element)) {
    drawn = true;
    if (!inView(x, y)) continue;
    seen = true;
    const hit = deepest(x, y);
    if (hit && within(hit, element)) return { x, y };
    cover ??= hit;
  }
  return { cover, seen, drawn };
}

function reveal(element) {
  element.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
}

// Describe what covers an element: {number, tag, text}.
function described(cover) {
  let number;
  for (let at = cover, steps = 0; at && steps < 8 && number === undefined; at = above(at), steps++) number = numbers.get(at);
  const text = clean(statedName(cover) || textBelow(cover, null), 60);
  return { number, tag: explicitRole(cover) || localName(cover), text };
}

function locate(number, mayBeDisabled) {
  const element = find(number);
  if (!element) return { gone: true };
  if (!mayBeDisabled && matches(element, ":disabled")) return { error: "is disabled" };
  let place = freePlace(element);
  if (place.x === undefined) {
    reveal(element);
    place = freePlace(element);
  }
  if (place.x !== undefined) return place;
  if (!place.drawn) return { error: "is not shown any more" };
  if (!place.seen || !place.cover) return { error: "cannot be scrolled into view" };
  return { cover: described(place.cover) };
}

function clickable(number) {
  const element = find(number);
  if (is(element, "select") && !element.multiple && element.size <= 1) {
    return { error: `is a combobox, whose list cannot be clicked; choose with select(${number}, "…")` };
  }
  if (is(element, "input") && element.type === "file") return { error: TAKES_A_FILE(number) };
  return locate(number, false);
}

const TAKES_A_FILE = (number) => `takes a file; choose one of the task's files, if it has any, with upload_file(${number}, "…")`;

function scrollTo(number) {
  const element = find(number);
  if (!element) return { gone: true };
  reveal(element);
  return {};
}

// Convert a position in a frame to one in this document, and check that it is not covered.
function frameAt(index, x, y) {
  for (const element of document.querySelectorAll("iframe, frame")) {
    if (element.contentWindow !== window[index]) continue;
    let box = rectOf(element);
    const at = () => {
      const scale = element.offsetWidth ? box.width / element.offsetWidth : 1;
      const style = getComputedStyle(element);
      return {
        x: box.left + (element.clientLeft + Number.parseFloat(style.paddingLeft) + x) * scale,
        y: box.top + (element.clientTop + Number.parseFloat(style.paddingTop) + y) * scale,
      };
    };
    let place = at();
    if (!inView(place.x, place.y)) {
      reveal(element);
      // The frame may be taller than the view, so scroll to the position in it.
      box = rectOf(element);
      scrollBy({ left: 0, top: inView(at().x, at().y) ? 0 : at().y - innerHeight / 2, behavior: "instant" });
      box = rectOf(element);
      place = at();
    }
    const hit = deepest(place.x, place.y);
    if (hit === element) return place;
    return hit ? { cover: described(hit) } : { error: "cannot be scrolled into view" };
  }
  return { gone: true };
}

// Fields

// The field of an element: the element itself, the control of a label, or the only field inside.
function fieldOf(number) {
  const element = find(number);
  if (!element) return null;
  if (is(element, "label") && element.control) return element.control;
  if (isField(element)) return element;
  const inside = [...element.querySelectorAll("input:not([type=hidden]), textarea, [contenteditable]")].filter(isField);
  return inside.length === 1 ? inside[0] : element;
}

const isField = (element) =>
  is(element, "input") || is(element, "textarea") || is(element, "select") || isEditingHost(element);

function unwritable(field, number) {
  if (matches(field, ":disabled") || attribute(field, "aria-disabled") === "true") return "is disabled";
  if (field.readOnly === true || attribute(field, "aria-readonly") === "true") return "is read-only";
  if (is(field, "select")) return `is a list of options; choose with select(${number}, "…")`;
  if (is(field, "input")) {
    if (field.type === "checkbox" || field.type === "radio") return `is a ${field.type}; use click(${number}), check(${number})`;
    if (field.type === "file") return TAKES_A_FILE(number);
    if (!TYPED.has(field.type) && !SET_BY_VALUE.has(field.type)) return `is a button; use click(${number})`;
  } else if (!isField(field)) return "is not a field that can be filled";
  return "";
}

// Prepare a field for text that replaces its content ("all") or is appended to it ("end").
function prepare(number, text, where) {
  const field = fieldOf(number);
  if (!field) return { gone: true };
  if (!isField(field) && !controlRole(field, localName(field)) && !INTERACTIVE.has(explicitRole(field))) return { byClick: true };
  const error = unwritable(field, number);
  if (error) return { error };
  reveal(field);
  if (is(field, "input") && SET_BY_VALUE.has(field.type)) {
    if (where === "end") return { error: `is a ${field.type} field; use fill(${number}, "…")` };
    return setValue(field, text);
  }
  if (is(field, "input") && field.type === "number" && text !== "" && !/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text)) {
    return { error: `takes a number, which ${JSON.stringify(text.slice(0, 60))} is not` };
  }
  field.focus();
  if (focusedElement() !== field && !field.contains(focusedElement())) return { error: "does not take the focus" };
  if (isEditingHost(field)) {
    const selection = getSelection();
    selection.selectAllChildren(field);
    if (where === "end") selection.collapseToEnd();
  } else if (where === "all") field.select();
  else if (field.type !== "number" && field.type !== "email") field.setSelectionRange(field.value.length, field.value.length);
  if (text === "" && where === "all") document.execCommand("delete");
  return { type: text !== "" };
}

// Whether a click on an element, which is not a field itself, has put the focus into one: editors have a hidden field.
async function editing(number) {
  await frame(100); // some do that in the next frame
  const field = focusedElement();
  if (!field || !isField(field) || unwritable(field, number)) return { error: "is not a field that can be filled" };
  return {};
}

function setValue(field, text) {
  const before = field.value;
  const wanted = field.type === "color" ? text.toLowerCase() : text;
  field.focus();
  field.value = wanted;
  const taken = field.value;
  const same = taken === wanted || (field.type === "range" && Number(taken) === Number(wanted)) || (wanted !== "" && taken.startsWith(wanted) && field.type.includes("time"));
  if (!same) {
    field.value = before;
    const form = FORMATS[field.type];
    if (form) return { error: `takes ${form}, which ${JSON.stringify(text.slice(0, 60))} is not` };
    return { error: `takes a number from ${field.min || 0} to ${field.max || 100}${field.step ? ` in steps of ${field.step}` : ""}, which ${JSON.stringify(text.slice(0, 60))} is not` };
  }
  announce(field);
  return { type: false };
}

function announce(field) {
  field.dispatchEvent(new Event("input", { bubbles: true, composed: true }));
  field.dispatchEvent(new Event("change", { bubbles: true }));
}

// Check that a field kept its new content.
function verify(number, text) {
  const field = fieldOf(number);
  if (!field || isEditingHost(field) || typeof field.value !== "string") return {};
  const most = field.maxLength;
  if (most >= 0 && text.length > most && field.value.length <= most) {
    return { error: `takes at most ${most} characters; it now holds ${JSON.stringify(field.value.slice(0, 200))}` };
  }
  if (text.trim() !== "" && field.value === "") return { error: "did not keep the text: it is empty" };
  return {};
}

// Lists

function select(number, wanted) {
  const field = fieldOf(number);
  if (!field) return { gone: true };
  if (!is(field, "select")) {
    return { error: "is no list of options; click it, and then click the option" };
  }
  if (matches(field, ":disabled")) return { error: "is disabled" };
  if (wanted.length > 1 && !field.multiple) return { error: "takes one option only" };
  const options = [...field.options].slice(0, 5000);
  const chosen = [];
  for (const text of wanted) {
    const option = matching(options, text);
    if (!option) {
      const near = options.slice(0, 50).map((each) => clean(each.label || each.text, 80));
      return { error: `has no option ${JSON.stringify(text.slice(0, 80))}`, options: near, more: options.length - near.length };
    }
    if (matches(option, ":disabled")) return { error: `has the option ${JSON.stringify(text.slice(0, 80))}, but it is disabled` };
    chosen.push(option);
  }
  field.focus();
  if (options.every((option) => option.selected === chosen.includes(option))) return {};
  for (const option of options) if (field.multiple) option.selected = chosen.includes(option);
  if (!field.multiple) chosen[0].selected = true;
  announce(field);
  return {};
}

function matching(options, text) {
  const plain = (value) => clean(value, 1000).toLowerCase();
  const label = (option) => clean(option.label || option.text, 1000);
  const wanted = clean(text, 1000);
  const loose = options.filter((option) => plain(label(option)) === plain(wanted));
  return options.find((option) => label(option) === wanted) ?? options.find((option) => option.value === text) ?? (loose.length === 1 ? loose[0] : undefined);
}

function checked(number) {
  const element = find(number);
  if (!element) return { gone: true };
  const box = is(element, "label") ? element.control : element;
  if (is(box, "input") && (box.type === "checkbox" || box.type === "radio")) return { kind: box.type, checked: box.checked && !box.indeterminate };
  const state = attribute(element, "aria-checked");
  if (state !== null) return { kind: explicitRole(element), checked: state === "true" };
  return { error: "is no checkbox or radio button; use click" };
}

function focus(number) {
  const element = find(number);
  if (!element) return { gone: true };
  if (matches(element, ":disabled")) return { error: "is disabled" };
  reveal(element);
  const target = is(element, "label") && element.control ? element.control : element;
  target.focus();
  return focusedElement() === target ? {} : { error: "does not take the focus" };
}

// Files

// Put files into the file field of an element. "chooser": it has none, but a click on it may ask for files.
function upload(number, files) {
  const field = fieldOf(number);
  if (!field) return { gone: true };
  if (is(field, "input") && field.type === "file") return setFiles(field, files);
  const inside = findAll(field, "input[type=file]");
  return inside.length === 1 ? setFiles(inside[0], files) : { chooser: true };
}

function setFiles(field, files) {
  if (matches(field, ":disabled")) return { error: "is disabled" };
  if (files.length > 1 && !field.multiple) return { error: "takes one file only" };
  const data = new DataTransfer();
  for (const { name, type, content } of files) data.items.add(new File([Uint8Array.from(atob(content), (char) => char.charCodeAt(0))], name, { type }));
  field.files = data.files;
  announce(field);
  return {};
}

// Selection and clipboard

// Select a text in an element, or in the whole document. White space does not count: pages break lines anywhere.
function selectText(number, text) {
  const root = number === null ? body(document) : find(number);
  if (!root) return { gone: true };
  const wanted = text.replace(/\s+/g, "");
  if ((is(root, "input") || is(root, "textarea")) && typeof root.selectionStart === "number") {
    const at = root.value.indexOf(text);
    if (at < 0) return { error: "does not contain this text" };
    root.focus();
    root.setSelectionRange(at, at + text.length);
    return {};
  }
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const parts = []; // [first index in the text without white space, node]
  let all = "";
  for (let node = walker.nextNode(); node && all.length < MOST_SELECTED; node = walker.nextNode()) {
    const parent = parentNode(node);
    if (SKIPPED.has(localName(parent)) || !isVisible(parent, { visibilityProperty: true })) continue;
    parts.push([all.length, node]);
    all += node.data.replace(/\s+/g, "");
  }
  const at = wanted === "" ? -1 : all.indexOf(wanted);
  if (at < 0) return { error: "does not contain this text" };
  // The position in a node of the character with this index.
  const place = (index) => {
    const [first, node] = parts.findLast(([start]) => start <= index);
    let left = index - first, offset = 0;
    while (offset < node.data.length && (/\s/.test(node.data[offset]) || left-- > 0)) offset++;
    return [node, offset];
  };
  const [startNode, start] = place(at), [endNode, end] = place(at + wanted.length - 1);
  for (let host = parentNode(startNode); host; host = parentNode(host)) if (nodeType(host) === ELEMENT && isEditingHost(host)) host.focus();
  getSelection().setBaseAndExtent(startNode, start, endNode, end + 1);
  if (parentNode(startNode)) reveal(parentNode(startNode));
  return {};
}

const MOST_SELECTED = 300_000, MOST_COPIED = 100_000;

// The page's own listeners may replace what is copied, or handle what is pasted, as in a browser with a clipboard.
function clipboardEvent(kind, data) {
  const target = focusedElement() ?? getSelection().anchorNode?.parentElement ?? body(document);
  return target.dispatchEvent(new ClipboardEvent(kind, { clipboardData: data, bubbles: true, cancelable: true, composed: true }));
}

function copySelection(kind) {
  const field = focusedElement(), data = new DataTransfer();
  const inField = is(field, "textarea") || (is(field, "input") && field.type !== "password" && typeof field.selectionStart === "number");
  const text = inField ? field.value.slice(field.selectionStart, field.selectionEnd) : getSelection().toString();
  if (!clipboardEvent(kind, data)) return { text: data.getData("text/plain").slice(0, MOST_COPIED) };
  if (kind === "cut" && text) document.execCommand("delete");
  return { text: text.slice(0, MOST_COPIED) };
}

function paste(text) {
  const data = new DataTransfer();
  data.setData("text/plain", text);
  return { insert: clipboardEvent("paste", data) };
}

// The index of the frame that has the focus, or null.
function focusedFrame() {
  const element = focusedElement();
  for (let index = 0; index < Math.min(window.length, 100); index++) if (element && window[index] === element.contentWindow) return { index };
  return { index: null };
}

// Scrolling

function scroll(number, direction) {
  const vertical = direction === "up" || direction === "down";
  const sign = direction === "up" || direction === "left" ? -1 : 1;
  const page = scrollingElement(document);
  let target = page;
  if (number === null) {
    if (!hasRoom(page, vertical)) target = largest(vertical) ?? page;
  } else {
    const element = find(number);
    if (!element) return { gone: true };
    target = element;
    while (target && nodeType(target) !== FRAGMENT && !(target === page || (rolls(target, vertical) && hasRoom(target, vertical)))) target = above(target);
    if (!target || nodeType(target) !== ELEMENT) target = page;
  }
  if (!target) return { error: "The page has nothing to scroll" };
  const size = target === page ? (vertical ? innerHeight : innerWidth) : vertical ? clientHeight(target) : clientWidth(target);
  const before = vertical ? target.scrollTop : target.scrollLeft;
  const step = sign * Math.max(40, Math.round(size * 0.8));
  target.scrollBy({ left: vertical ? 0 : step, top: vertical ? step : 0, behavior: "instant" });
  const after = vertical ? target.scrollTop : target.scrollLeft;
  if (Math.abs(after - before) >= 1) return {};
  const what = number === null ? "The page" : `Element ${number}`;
  return { error: hasRoom(target, vertical) ? `${what} is scrolled to its end: it cannot be scrolled further ${direction}` : `${what} has nothing to scroll ${direction} to` };
}

function hasRoom(element, vertical) {
  if (!element) return false;
  return vertical ? scrollHeight(element) > clientHeight(element) + 1 : scrollWidth(element) > clientWidth(element) + 1;
}

function rolls(element, vertical) {
  const style = getComputedStyle(element);
  return scrollable(vertical ? style.overflowY : style.overflowX) || is(element, "textarea");
}

// The largest scrollable element in the view: in many applications the page itself does not scroll.
function largest(vertical) {
  let best = null, area = 0, looked = 0;
  for (const element of document.querySelectorAll("*")) {
    if (++looked > 5000) break;
    if (!hasRoom(element, vertical) || !rolls(element, vertical)) continue;
    const box = rectOf(element);
    const size = Math.max(0, Math.min(box.right, innerWidth) - Math.max(box.left, 0)) * Math.max(0, Math.min(box.bottom, innerHeight) - Math.max(box.top, 0));
    if (size > area) [best, area] = [element, size];
  }
  return best;
}

// Resolve a URL as Chromium does. The base is for pages without a URL of their own.
function resolve(text, base) {
  try {
    const url = new URL(text, location.protocol.startsWith("http") ? location.href : base);
    const user = url.username !== "" || url.password !== "";
    return { url: url.href, scheme: url.protocol.slice(0, -1), origin: url.origin, user };
  } catch {
    return { error: "is not a URL" };
  }
}

// Waiting

const later = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const frame = (ms) => Promise.race([new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 0))), later(ms)]);

// Wait until the page is still: two frames without changes and without a running finite animation; after a change,
// until one frame was drawn without changes; after changes in several frames, as animations by timers make, until
// `STILL_FRAMES` were, because a busy machine runs timers less often than it draws. `changes` limits the wait for a page
// that is never still, in ms; a frame that does not come is waited for at most a tenth of that.
const STILL_FRAMES = 4;

async function still(changes, loading, frames = 1) {
  if (document.readyState !== "complete") {
    await Promise.race([new Promise((resolve) => addEventListener("load", resolve, { once: true })), later(loading)]);
  }
  const end = performance.now() + changes;
  let changed = false;
  const watcher = new MutationObserver(() => (changed = true));
  watcher.observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
  try {
    // After two frames, work that the page deferred by one or two frames is done: the page's callbacks run first.
    await frame(changes / 10);
    await frame(changes / 10);
    let quiet = changed || moving() ? 0 : 2;
    for (let animated = 0; quiet < frames && performance.now() < end; ) {
      changed = false;
      await frame(changes / 10);
      quiet = changed || moving() ? 0 : quiet + 1;
      if (changed && ++animated === 2) frames = Math.max(frames, STILL_FRAMES);
    }
    // Layout requests the images of style sheets. Otherwise the next frame does, which a busy machine draws late.
    document.documentElement?.getBoundingClientRect();
  } finally {
    watcher.disconnect();
  }
  return { loaded: document.readyState === "complete" };
}

function moving() {
  return document.getAnimations().slice(0, 200).some((animation) => {
    if (animation.playState !== "running") return false;
    const { endTime } = animation.effect?.getComputedTiming() ?? {};
    return Number.isFinite(endTime) && endTime - (animation.currentTime ?? 0) < 2000;
  });
}

// Whether the mouse has started a native drag, which the page's own listeners did not prevent.
let dragged = null;
const noteDrag = (event) => { if (event.isTrusted) dragged = event; };

function watchDrag() {
  dragged = null;
  addEventListener("dragstart", noteDrag, true);
  return {};
}

function dragBegan() {
  return { began: dragged !== null && !dragged.defaultPrevented };
}

// The index of this frame among its parent's frames.
function position() {
  let own = 0;
  while (own < 100 && window.parent[own] !== window) own++;
  return { own };
}

const calls = { observe, locate, clickable, frameAt, prepare, editing, verify, select, checked, focus, scroll, resolve, position, still, watchDrag, dragBegan,
  scrollTo, upload, selectText, copySelection, paste, focusedFrame };

// The single entry point: takes a function name and arguments, returns JSON.
const dispatch = async (name, ...args) => JSON.stringify(await calls[name](...args));
Object.assign(dispatch, { noteClosed, takeHosts, setFiles: (field, files) => JSON.stringify(setFiles(field, files)) });
