// Determines the number, role, name and state of an element. Only reads, so that the page cannot detect it.
//
// This file, observe.js and act.js are joined, in this order, into one function that runs in an isolated world. Scripts
// of the page cannot replace the built-ins there. Names in the page can still shadow properties: <form><input
// name="localName"> hides form.localName. Properties of elements are therefore read through the prototypes.

const getter = (prototype, name) => {
  const { get } = Object.getOwnPropertyDescriptor(prototype, name);
  return (node) => get.call(node);
};
const method = (prototype, name) => {
  const call = prototype[name];
  return (node, ...args) => call.apply(node, args);
};
const nodeType = getter(Node.prototype, "nodeType");
const firstChild = getter(Node.prototype, "firstChild");
const nextSibling = getter(Node.prototype, "nextSibling");
const parentNode = getter(Node.prototype, "parentNode");
const isConnected = getter(Node.prototype, "isConnected");
const getRootNode = method(Node.prototype, "getRootNode");
const localName = getter(Element.prototype, "localName");
const namespaceURI = getter(Element.prototype, "namespaceURI");
const shadowRoot = getter(Element.prototype, "shadowRoot");
const assignedSlot = getter(Element.prototype, "assignedSlot");
const attribute = method(Element.prototype, "getAttribute");
const hasAttribute = method(Element.prototype, "hasAttribute");
const attributeNames = method(Element.prototype, "getAttributeNames");
const matches = method(Element.prototype, "matches");
const findAll = method(Element.prototype, "querySelectorAll");
const isVisible = method(Element.prototype, "checkVisibility");
const nextElement = getter(Element.prototype, "nextElementSibling");
const previousElement = getter(Element.prototype, "previousElementSibling");
const rectOf = method(Element.prototype, "getBoundingClientRect");
const clientWidth = getter(Element.prototype, "clientWidth");
const clientHeight = getter(Element.prototype, "clientHeight");
const scrollWidth = getter(Element.prototype, "scrollWidth");
const scrollHeight = getter(Element.prototype, "scrollHeight");
const scrollTop = getter(Element.prototype, "scrollTop");
const isContentEditable = getter(HTMLElement.prototype, "isContentEditable");
const activeElement = getter(Document.prototype, "activeElement");
const body = getter(Document.prototype, "body");
const documentElement = getter(Document.prototype, "documentElement");
const scrollingElement = getter(Document.prototype, "scrollingElement");
const title = getter(Document.prototype, "title");
const querySelectorAll = method(Document.prototype, "querySelectorAll");

const ELEMENT = 1, TEXT = 3, FRAGMENT = 11;
const HTML = "http://www.w3.org/1999/xhtml", SVG = "http://www.w3.org/2000/svg";
// Not instanceof: the prototype of an element may come from the frame in which it was created or first seen.
const is = (node, tag) => Boolean(node) && nodeType(node) === ELEMENT && localName(node) === tag && namespaceURI(node) === HTML;
const MOST_NUMBERED = 5000, MOST_OPTIONS = 50, DEEPEST = 400, MOST_HOSTS = 50;
const NAME_CHARS = 300, TEXT_CHARS = 4000, VALUE_CHARS = 2000;

// Numbers

const numbers = new WeakMap();
const byNumber = new Map(); // number -> WeakRef
const listening = new WeakMap(); // node -> kinds of its mouse listeners, reported by listeners.js
const closedRoots = new WeakMap(); // host -> root of a closed shadow tree, reported by the browser
const knownHosts = new WeakSet(); // elements already checked for a closed shadow tree
let dragging = false; // some element listens for the press of a button, as those that can be dragged do
let next = 0;

function numberOf(element) {
  let number = numbers.get(element);
  if (number === undefined) {
    number = next++;
    numbers.set(element, number);
    byNumber.set(number, new WeakRef(element));
  }
  return number;
}

function find(number) {
  const element = byNumber.get(number)?.deref();
  return element !== undefined && isConnected(element) ? element : null;
}

// Text

function clean(text, most) {
  if (!text) return "";
  const part = text.length > 4 * most ? text.slice(0, 4 * most) : text;
  const words = part.toWellFormed().replace(/\s+/g, " ").trim();
  if (words.length <= most && part.length === text.length) return words;
  return `${words.slice(0, most).toWellFormed()}… (${text.length} characters)`;
}

const cleanAttribute = (element, name) => clean(attribute(element, name), NAME_CHARS);

// The text below a node, for names: includes text for screen readers only, excludes text that is not rendered.
function textBelow(node, except, budget = { nodes: 300, chars: NAME_CHARS }) {
  if (--budget.nodes < 0 || budget.chars <= 0 || node === except) return "";
  const type = nodeType(node);
  if (type === TEXT) {
    const text = node.data.length > 2 * NAME_CHARS ? node.data.slice(0, 2 * NAME_CHARS) : node.data;
    budget.chars -= text.length;
    return text;
  }
  if (type === ELEMENT) {
    const tag = localName(node);
    if (SKIPPED.has(tag) || attribute(node, "aria-hidden") === "true") return "";
    if (tag === "img") return ` ${cleanAttribute(node, "alt")} `;
    if (tag === "br") return " ";
    if (tag === "input" || tag === "select" || tag === "textarea") return "";
    const style = getComputedStyle(node);
    if (style.display === "none") return "";
    if (attribute(node, "aria-label")) return ` ${cleanAttribute(node, "aria-label")} `;
    let text = "";
    for (const child of childrenOf(node)) text += textBelow(child, except, budget);
    return style.display.startsWith("inline") ? text : ` ${text} `;
  }
  return "";
}

function* childrenOf(element) {
  const root = nodeType(element) === ELEMENT ? (shadowRoot(element) ?? closedRoots.get(element)) : null;
  if (root) {
    for (let child = firstChild(root); child; child = nextSibling(child)) yield child;
    return;
  }
  if (is(element, "slot")) {
    const assigned = element.assignedNodes();
    if (assigned.length) {
      yield* assigned;
      return;
    }
  }
  for (let child = firstChild(element); child; child = nextSibling(child)) yield child;
}

// Whether an element may have a closed shadow tree: a custom element, or an empty one with a height.
function mayHideTree(element, tag, rect) {
  if (knownHosts.has(element) || closedRoots.has(element) || shadowRoot(element)) return false;
  return tag.includes("-") || (PLAIN_HOSTS.has(tag) && !firstChild(element) && rect !== null && rect.height > 0);
}

const PLAIN_HOSTS = new Set(["div", "section", "article", "main", "aside", "header", "footer", "nav", "p"]);

// Names

function referenced(element, name) {
  const ids = attribute(element, name);
  if (!ids) return [];
  const root = getRootNode(element);
  return ids.slice(0, 500).split(/\s+/).slice(0, 8).map((id) => root.getElementById?.(id)).filter(Boolean);
}

// The name given by aria-labelledby or aria-label, whatever the content.
function statedName(element) {
  const labels = referenced(element, "aria-labelledby");
  const text = labels.map((label) => textBelow(label, element)).join(" ");
  return clean(text, NAME_CHARS) || cleanAttribute(element, "aria-label");
}

function fieldName(element) {
  const stated = statedName(element);
  if (stated) return stated;
  const labels = [...(element.labels ?? [])].slice(0, 4);
  const text = clean(labels.map((label) => textBelow(label, element)).join(" "), NAME_CHARS);
  return text || cleanAttribute(element, "title") || cleanAttribute(element, "placeholder") || cleanAttribute(element, "alt");
}

// Roles

const SKIPPED = new Set(
  ("script style noscript template head meta link title base source track param datalist map col colgroup " +
    "object embed rp").split(" "),
);
const INTERACTIVE = new Set(
  ("button link checkbox radio switch tab menuitem menuitemcheckbox menuitemradio option combobox textbox " +
    "searchbox slider spinbutton treeitem listbox gridcell").split(" "),
);
const STRUCTURE = new Set(
  ("heading list listitem table row cell columnheader rowheader gridcell navigation dialog alertdialog alert status " +
    "group radiogroup menu menubar tablist tabpanel tree grid toolbar search article img image progressbar meter " +
    "tooltip figure log option treegrid").split(" "),
);
const TAG_ROLES = {
  h1: "heading", h2: "heading", h3: "heading", h4: "heading", h5: "heading", h6: "heading",
  ul: "list", ol: "list", menu: "list", li: "listitem", table: "table", tr: "row", td: "cell", th: "columnheader",
  nav: "navigation", dialog: "dialog", fieldset: "group", article: "article", img: "image", canvas: "canvas",
  progress: "progressbar", meter: "meter", output: "status", dt: "term", dd: "definition", blockquote: "blockquote",
  pre: "code", video: "video", audio: "audio",
};
const INPUT_ROLES = {
  checkbox: "checkbox", radio: "radio", range: "slider", number: "spinbutton", search: "searchbox",
  submit: "button", button: "button", reset: "button", image: "button", file: "file", color: "colorpicker",
};
const PLAIN_TEXT = new Set(["text", "search", "password"]);
const FIELDS = new Set(["textbox", "searchbox", "spinbutton", "slider", "colorpicker", "combobox", "listbox", "file"]);
// Roles named by their content. The content is not listed below the element if it is only text.
const NAMED_BY_CONTENT = new Set(
  ("button link tab menuitem menuitemcheckbox menuitemradio option treeitem switch checkbox radio clickable area " +
    "gridcell cell columnheader rowheader heading tooltip").split(" "),
);

function explicitRole(element) {
  const role = attribute(element, "role");
  if (!role) return "";
  const first = role.trim().split(/\s/, 1)[0].toLowerCase();
  if (first === "searchbox" || first === "img") return first === "img" ? "image" : first;
  return INTERACTIVE.has(first) || STRUCTURE.has(first) ? first : first === "presentation" || first === "none" ? "none" : "";
}

function controlRole(element, tag) {
  if (is(element, "input")) return element.type === "hidden" ? "" : (INPUT_ROLES[element.type] ?? "textbox");
  if (is(element, "select")) return element.multiple || element.size > 1 ? "listbox" : "combobox";
  if (is(element, "textarea")) return "textbox";
  if (is(element, "button")) return "button";
  if ((tag === "a" || tag === "area") && (hasAttribute(element, "href") || hasAttribute(element, "xlink:href"))) return "link";
  if (tag === "summary") return "button";
  if ((tag === "video" || tag === "audio") && hasAttribute(element, "controls")) return tag;
  return "";
}

const isEditingHost = (element) =>
  namespaceURI(element) === HTML && hasAttribute(element, "contenteditable") && isContentEditable(element);

// Uses without a role

const CLICK = 1, HOVER = 2, MENU = 4, DROP = 8, PRESS = 16;
const INLINE_HANDLERS = {
  __proto__: null,
  onclick: CLICK, ondblclick: CLICK, onmouseup: CLICK, onpointerup: CLICK, onmousemove: CLICK, ontouchend: CLICK,
  onmousedown: PRESS, onpointerdown: PRESS, ontouchstart: PRESS,
  onmouseenter: HOVER, onmouseover: HOVER, onpointerenter: HOVER, onpointerover: HOVER,
  oncontextmenu: MENU, ondrop: DROP, ondragover: DROP, ondragenter: DROP,
  "aria-haspopup": CLICK, "aria-expanded": CLICK, "aria-grabbed": CLICK, "aria-dropeffect": DROP,
};
// Cursors that invite to use the mouse.
const INVITING = new Set(["pointer", "grab", "grabbing", "move", "all-scroll", "context-menu", "copy", "zoom-in", "crosshair"]);

const PRESSED = new Set(["html", "body", "button", "a", "input", "select", "textarea", "label", "summary"]);

// Receive the nodes whose listeners have changed.
function askForListeners() {
  const receive = (event) => {
    for (const { relatedTarget } of event.getPredictedEvents()) {
      listening.set(relatedTarget, event.pointerId);
      if (event.pointerId & PRESS && nodeType(relatedTarget) === ELEMENT && !PRESSED.has(localName(relatedTarget))) dragging = true;
    }
  };
  addEventListener(`${LISTENER_EVENT}!`, receive);
  dispatchEvent(new Event(LISTENER_EVENT));
  removeEventListener(`${LISTENER_EVENT}!`, receive);
}

// The kinds of events that an element listens for itself.
function heard(element) {
  let kinds = listening.get(element) ?? 0;
  for (const name of attributeNames(element)) kinds |= INLINE_HANDLERS[name] ?? 0;
  return kinds;
}

// What an element is for, according to its listeners, its cursor or a tab stop.
function usesOf(element, tag, newCursor) {
  if (tag === "body" || tag === "html") return 0;
  if (tag === "label" && element.control) return 0;
  const kinds = heard(element);
  if (newCursor || attribute(element, "draggable") === "true") return kinds | CLICK;
  const stop = attribute(element, "tabindex");
  return stop !== null && Number.parseInt(stop, 10) >= 0 ? kinds | CLICK : kinds;
}

// State

function flagsOf(element, role, focused) {
  const flags = [];
  const aria = (name) => attribute(element, `aria-${name}`);
  const checkable = is(element, "input") && (element.type === "checkbox" || element.type === "radio");
  if (checkable ? element.indeterminate : aria("checked") === "mixed") flags.push("mixed");
  else if (checkable ? element.checked : aria("checked") === "true") flags.push("checked");
  if (aria("selected") === "true") flags.push("selected");
  if (aria("pressed") === "true") flags.push("pressed");
  const current = aria("current");
  if (current && current !== "false") flags.push("current");
  const details = localName(element) === "summary" ? parentNode(element) : null;
  const expanded = is(details, "details") ? String(details.open) : aria("expanded");
  if (expanded === "true") flags.push("expanded");
  if (expanded === "false") flags.push("collapsed");
  if (matches(element, ":disabled") || aria("disabled") === "true") flags.push("disabled");
  if (FIELDS.has(role) && (element.readOnly === true || aria("readonly") === "true")) flags.push("readonly");
  if (element.required === true || aria("required") === "true") flags.push("required");
  if (element.multiple === true) flags.push("multiple");
  if (element === focused) flags.push("focused");
  return flags;
}

function fieldState(node, element, role) {
  const attributes = {};
  if (is(element, "select")) {
    const options = [];
    for (const option of element.options) {
      if (options.length === MOST_OPTIONS) break;
      options.push(clean(option.label || option.text, 120) + (option.disabled ? " (disabled)" : ""));
    }
    const chosen = [...element.selectedOptions].slice(0, MOST_OPTIONS).map((option) => clean(option.label || option.text, 120));
    node.v = element.multiple ? chosen : (chosen[0] ?? "");
    node.o = options;
    if (element.options.length > options.length) node.more = element.options.length - options.length;
  } else if (is(element, "input") || is(element, "textarea")) {
    const type = element.type;
    const value = element.value;
    if (type === "password") node.v = "•".repeat(Math.min(value.length, 64));
    else if (type === "file") node.v = clean([...element.files].map((file) => file.name).join(", "), VALUE_CHARS);
    else if (role !== "button" && role !== "checkbox" && role !== "radio") node.v = shown(value);
    if (role === "textbox" && is(element, "input") && !PLAIN_TEXT.has(type)) attributes.type = type;
    for (const bound of ["min", "max"]) if (FIELDS.has(role) && hasAttribute(element, bound)) attributes[bound] = cleanAttribute(element, bound);
    if (value === "" && hasAttribute(element, "placeholder")) attributes.placeholder = cleanAttribute(element, "placeholder");
    if (matches(element, ":user-invalid")) attributes.invalid = clean(element.validationMessage, NAME_CHARS) || "yes";
  } else if (isEditingHost(element)) {
    const budget = { nodes: 2000, chars: 2 * VALUE_CHARS };
    node.v = clean([...childrenOf(element)].map((child) => textBelow(child, null, budget)).join(""), VALUE_CHARS);
  } else {
    const value = attribute(element, "aria-valuetext") ?? attribute(element, "aria-valuenow");
    if (value !== null) node.v = clean(value, NAME_CHARS);
  }
  if (attribute(element, "aria-invalid") === "true") attributes.invalid ??= "yes";
  if (attributes.placeholder === node.s) delete attributes.placeholder;
  return attributes;
}

// Line breaks and blanks are part of a value and are kept.
function shown(value) {
  return value.length <= VALUE_CHARS ? value.toWellFormed() : `${value.slice(0, VALUE_CHARS).toWellFormed()}… (${value.length} characters)`;
}

// Distinguishes elements without a name: their class, position and colour.
function looks(element, style, rect) {
  const drawn = namespaceURI(element) === SVG;
  const colour = !drawn ? style.backgroundColor : localName(element) === "line" ? "none" : style.fill;
  const looks = { box: `${Math.round(rect.left)},${Math.round(rect.top)} ${Math.round(rect.width)}x${Math.round(rect.height)}` };
  if (colour && colour !== "none" && colour !== "rgba(0, 0, 0, 0)") looks.color = colour;
  if (drawn && style.stroke !== "none") looks.stroke = style.stroke;
  const words = clean(attribute(element, "class"), 60);
  if (words) looks.class = words;
  return looks;
}
