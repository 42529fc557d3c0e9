// Builds the tree of a page for rllm_gym.envs.web.browser.observation by walking over the rendered elements.
//
// A node of the tree: {t: text} or {r: role, n: number, s: name, v: value, o: options, a: attributes, f: flags,
// c: children, y: -1 above the view, 1 below}; without r it is a group: a block if b is set, else part of the line.
// With limits.boxes also {p: [left, top, width, height] in the view of this document, q: points on the outline of a
// shape, at: [left, top, scale] of the document of a frame}.

let walk; // state of the running observation: {visited, numbered, chars, cut, focused, frames}

function visitAll(parent, into, place) {
  for (const child of childrenOf(parent)) {
    const type = nodeType(child);
    if (type === TEXT) {
      if (!place.unseen) addText(child.data, into, place);
    } else if (type === ELEMENT) visit(child, into, place);
  }
}

function addText(data, into, place) {
  const text = clean(data, TEXT_CHARS);
  if (!text) {
    if (data) into.space = true;
    return;
  }
  walk.chars += text.length;
  if (walk.chars > walk.limits.chars) {
    walk.cut = true;
    return;
  }
  // Text in several elements of one line is joined: <b>1</b>2 is 12, <b>1</b> 2 is 1 2.
  const last = into[into.length - 1];
  const apart = into.space || /^\s/.test(data);
  if (last && last.t !== undefined && (last.y ?? 0) === place.side) last.t += (apart ? " " : "") + text;
  else into.push(place.side ? { t: text, y: place.side } : { t: text });
  into.space = /\s$/.test(data);
}

function visit(element, into, place) {
  if (++walk.visited > walk.limits.nodes || walk.chars > walk.limits.chars || place.depth > DEEPEST) {
    walk.cut = true;
    return;
  }
  const tag = localName(element);
  if (SKIPPED.has(tag)) return;
  if (tag === "br") {
    into.push({ b: 1 });
    return;
  }
  const style = getComputedStyle(element);
  const display = style.display;
  if (display === "none" || attribute(element, "aria-hidden") === "true" || hasAttribute(element, "inert")) return;
  const inner = placeWithin(element, tag, style, display, place);
  if (inner === null) return;
  if (walk.hosts.length < MOST_HOSTS && mayHideTree(element, tag, inner.rect)) walk.hosts.push(element);
  inner.cursor = INVITING.has(style.cursor) ? style.cursor : "";
  const newCursor = inner.cursor !== "" && inner.cursor !== place.cursor && !place.isButton;

  let role = explicitRole(element);
  let control = controlRole(element, tag) || (isEditingHost(element) ? "textbox" : "");
  if (tag === "label" && element.control && !isShown(element.control)) {
    const box = controlRole(element.control, localName(element.control));
    if (box === "checkbox" || box === "radio" || box === "file") return visitStandIn(element, box, into, inner);
  }
  if (is(element, "iframe") || tag === "frame") {
    if (!inner.unseen) addFrame(element, into, inner);
    return;
  }
  if (tag === "svg") return visitSvg(element, style, into, inner, newCursor);
  const uses = usesOf(element, tag, newCursor);
  const named = control !== "" || INTERACTIVE.has(role);
  const interactive = named || (uses & ~HOVER) !== 0;
  const scrolls = scrollsItself(element, tag, style);
  const rect = interactive || scrolls ? (inner.rect ?? rectOf(element)) : null;
  const reachable = rect !== null && !inner.unseen && rect.width > 0 && rect.height > 0;
  let numbered = reachable && walk.numbered < MOST_NUMBERED;
  if (reachable && !numbered) walk.cut = true;
  if (role === "" || (role === "none" && control)) role = control || TAG_ROLES[tag] || "";
  if (role === "none") role = "";
  if (numbered && role === "") role = !interactive ? "scrollable" : uses & (CLICK | PRESS) ? "clickable" : "area";
  let offers = numbered ? 0 : offersOf(element, role, tag, style, uses, inner, place);
  inner.isButton = place.isButton || control === "button" || control === "link" || role === "button" || role === "link";
  inner.isPart = place.isPart || named || inner.cursor !== "";
  inner.zone = zoneWithin(element, tag, inner, place);
  if (display === "contents" || (role === "" && !offers)) return visitPlain(element, tag, display, into, inner);

  if (numbered) {
    numberOf(element);
    walk.numbered++;
  }
  const children = [];
  const isField = is(element, "select") || is(element, "input") || is(element, "textarea") || isEditingHost(element);
  const numberedBefore = walk.numbered;
  if (!isField && role !== "image" && !(inner.unseen && !mayShowBelow(element))) visitContents(element, tag, children, inner);
  if (offers && walk.numbered === numberedBefore && isArea(element, children, inner)) {
    numbered = true;
    walk.numbered++;
    role ||= "area";
  } else offers = 0;
  if (role === "") return addPlain(element, tag, display, children, into);
  const node = { r: role };
  if (inner.side) node.y = inner.side;
  if (numbered) node.n = numberOf(element);
  nameNode(node, element, role, tag, children, isField, offers !== 0 && role !== "row");
  const attributes = FIELDS.has(role) || isField ? fieldState(node, element, role) : {};
  const sort = attribute(element, "aria-sort");
  if (sort && sort !== "none") attributes.sort = clean(sort, 20);
  if (role === "progressbar" || role === "meter") node.v = clean(attribute(element, "aria-valuenow") ?? attribute(element, "value"), 40);
  if (scrolls) attributes.scrolled = `${Math.round(scrollTop(element))} of ${scrollHeight(element) - clientHeight(element)} px`;
  if (numbered && !node.s && !node.c && !isField) Object.assign(attributes, looks(element, style, rect ?? rectOf(element)));
  const shownUses = offers || (named ? 0 : role === "area" ? uses : uses & (MENU | DROP));
  if (numbered && shownUses) attributes.for = USES.filter(([kind]) => shownUses & kind).map(([, use]) => use).join(", ");
  if (Object.keys(attributes).length) node.a = attributes;
  if (numbered) {
    const flags = flagsOf(element, role, walk.focused);
    if (flags.length) node.f = flags;
  }
  const drawn = walk.limits.boxes && !inner.unseen && (numbered || role === "image" || role === "canvas");
  if (drawn) node.p = boxOf(rect ?? inner.rect ?? rectOf(element));
  if (inner.unseen && !numbered) {
    if (node.c) into.push({ b: 1, c: node.c });
    return;
  }
  if (!numbered && !drawn && !node.s && !node.c && role !== "cell" && role !== "columnheader") return;
  if (display.startsWith("inline")) node.i = 1;
  walk.chars += 20 + node.s.length + (node.v?.length ?? 0);
  into.push(node);
  into.space = true;
}

const boxOf = (rect) => [rect.left, rect.top, rect.width, rect.height].map(Math.round);

// Points on the outline of a shape, in the view: the corners of one that has corners, else some at equal distances.
const OUTLINE_POINTS = 9, MOST_CORNERS = 24, LONGEST_PATH = 20_000;
function outlineOf(shape) {
  const matrix = shape.getScreenCTM?.();
  if (!matrix || !shape.getTotalLength || (attribute(shape, "d") ?? "").length > LONGEST_PATH) return undefined;
  let points;
  try {
    if (shape.points) points = [...shape.points].slice(0, MOST_CORNERS);
    else {
      const length = shape.getTotalLength();
      const last = localName(shape) === "line" ? 1 : OUTLINE_POINTS - 1;
      points = Array.from({ length: last + 1 }, (_, index) => shape.getPointAtLength((length * index) / last));
    }
  } catch {
    return undefined; // not rendered
  }
  return points.map(({ x, y }) => [matrix.a * x + matrix.c * y + matrix.e, matrix.b * x + matrix.d * y + matrix.f]);
}

const mayShowBelow = (element) => firstChild(element) !== null;

function visitContents(element, tag, children, inner) {
  if (is(element, "details") && !element.open) {
    for (const child of childrenOf(element)) {
      if (nodeType(child) === ELEMENT && localName(child) === "summary") return visit(child, children, inner);
    }
    return;
  }
  visitAll(element, children, inner);
}

// Elements that are used without a listener of their own: their container, or the document, listens for them, a style
// sheet shows something while the mouse is over them, or something can be dropped there. They get a number if they contain no numbered element,
// because the same events reach them through that one. Parts of a control or of anything with an inviting cursor get none.

const USES = [[CLICK, "click"], [PRESS, "drag"], [HOVER, "hover"], [MENU, "right-click"], [DROP, "drop"]];
const PROSE = new Set(["p", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "blockquote", "label", "legend", "br", "hr"]);
const ITEM_ROLES = new Set(["listitem", "row", "cell", "columnheader", "rowheader", "image", "canvas", "figure"]);
const CELLS = new Set(["cell", "columnheader", "rowheader"]);
const DROP_CLASS = /(^|[\s_-])(droppable|drop-?(zone|target|area))($|[\s_-])/i;
const GENERIC = new Set(["div", "span", "section"]);
const PARTS = new Set(["table", "thead", "tbody", "tfoot", "tr"]);
const ZONE_DEPTH = 3, SMALLEST_AREA_PX = 8, SMALLEST_TARGET_PX = 24, AREA_CHARS = 150;

// What others offer to do with an element.
function offersOf(element, role, tag, style, uses, inner, place) {
  if (inner.unseen || place.isPart || tag === "html" || tag === "body") return 0;
  let kinds = uses & HOVER;
  if (walk.hovers && matches(element, walk.hovers)) kinds |= HOVER;
  if (DROP_CLASS.test(attribute(element, "class") ?? "")) kinds |= DROP;
  const inline = inner.rect === null && role !== "image" && role !== "canvas";
  // Something can be dragged: scripts often find the place to drop it by its position.
  const isTarget = dragging && inner.rect?.width >= SMALLEST_TARGET_PX && inner.rect.height >= SMALLEST_TARGET_PX;
  if (isTarget && !CELLS.has(role) && isBox(style)) kinds |= DROP;
  if (!place.zone && !walk.offers) return kinds;
  const item = ITEM_ROLES.has(role) || (!PROSE.has(tag) && isRepeated(element));
  if (place.zone && item && (!inline || place.zone.depth === 0)) kinds |= place.zone.kinds;
  if (walk.offers && !inline && !CELLS.has(role) && (item || isBox(style))) kinds |= walk.offers;
  return kinds;
}

// What an element and its containers listen for on behalf of its content: {kinds, depth}.
function zoneWithin(element, tag, inner, place) {
  if (tag === "html" || tag === "body" || inner.isPart) return null;
  const root = shadowRoot(element) ?? closedRoots.get(element);
  const kinds = heard(element) | (root ? (listening.get(root) ?? 0) : 0);
  if (kinds) return { kinds, depth: 0 };
  const { zone } = place;
  if (!zone || zone.depth >= ZONE_DEPTH || (isRepeated(element) && !PARTS.has(tag))) return null;
  return { kinds: zone.kinds, depth: zone.depth + 1 };
}

function isArea(element, children, inner) {
  if (walk.numbered >= MOST_NUMBERED) {
    walk.cut = true;
    return false;
  }
  const rect = inner.rect ?? rectOf(element);
  if (rect.width < SMALLEST_AREA_PX || rect.height < SMALLEST_AREA_PX) return false;
  const { text, plain } = flat(children);
  return plain && text.length <= AREA_CHARS;
}

// Whether an element looks like the one before or after it: an item of a list, a card of a board.
function isRepeated(element) {
  const tag = localName(element), classes = attribute(element, "class");
  if (GENERIC.has(tag) && attributeNames(element).every((name) => name === "id" || name === "style")) return false;
  const alike = (other) => other !== null && localName(other) === tag && attribute(other, "class") === classes;
  return alike(nextElement(element)) || alike(previousElement(element));
}

function isBox(style) {
  return (
    style.borderTopWidth !== "0px" || style.borderLeftWidth !== "0px" || style.boxShadow !== "none" ||
    style.backgroundImage !== "none" || (style.backgroundColor !== "rgba(0, 0, 0, 0)" && style.backgroundColor !== "transparent")
  );
}

// A selector of the elements that show something else while the mouse is over them, as the menus of style sheets do.
const SHOWING = ["display", "visibility", "opacity", "height", "max-height", "transform", "clip", "clip-path", "left", "top", "pointer-events"];
const MOST_RULES = 5000, MOST_HOVERS = 100;
const hoverRules = new WeakMap(); // style sheet -> {rules, selectors}

function hoverSelector() {
  const found = new Set();
  for (const sheet of [...document.styleSheets, ...document.adoptedStyleSheets].slice(0, 100)) {
    let rules;
    try {
      rules = sheet.cssRules;
    } catch {
      continue; // of another site
    }
    let known = hoverRules.get(sheet);
    if (known?.length !== rules.length) hoverRules.set(sheet, (known = { length: rules.length, selectors: hoversIn(rules) }));
    for (const selector of known.selectors) if (found.size < MOST_HOVERS) found.add(selector);
  }
  return [...found].join(",");
}

function hoversIn(rules, budget = { left: MOST_RULES }) {
  const selectors = [];
  for (const rule of rules) {
    if (--budget.left < 0) break;
    if (rule.selectorText?.includes(":hover") && SHOWING.some((name) => rule.style.getPropertyValue(name) !== "")) {
      selectors.push(...rule.selectorText.split(",").map(beforeHover).filter(Boolean));
    }
    if (rule.cssRules?.length && !(rule.media && !matchMedia(rule.media.mediaText).matches)) selectors.push(...hoversIn(rule.cssRules, budget));
  }
  return selectors;
}

// A selector of the elements that have to be under the mouse, if another element changes: li:hover > ul gives li:has(> ul).
function beforeHover(selector) {
  const [, before, after, changing] = /^(.*):hover([^\s>+~]*)\s*([\s>+~]\s*[^\s>+~].*)$/.exec(selector.trim()) ?? [];
  if (changing === undefined) return "";
  const wanted = `${before}${after}:has(${changing.replace(/::[\w-]+/g, "")})`;
  try {
    document.createDocumentFragment().querySelector(wanted);
    return wanted;
  } catch {
    return ""; // too complicated, or cut at a comma in brackets
  }
}

function visitPlain(element, tag, display, into, inner) {
  if (display.startsWith("inline") && display !== "inline-block") {
    const labels = tag === "label" && element.control && isShown(element.control) && !statedName(element.control);
    if (!labels) return visitAll(element, into, inner);
  }
  const children = [];
  visitContents(element, tag, children, inner);
  addPlain(element, tag, display, children, into);
}

function addPlain(element, tag, display, children, into) {
  let kept = children;
  // The text of a label is the name of its field, which has its own entry.
  if (tag === "label" && element.control && isShown(element.control) && !statedName(element.control)) {
    kept = children.filter((child) => child.t === undefined);
  }
  if (!kept.length) return;
  if (display.startsWith("inline") || display === "contents") into.push({ c: kept });
  else if (walk.limits.boxes && kept.length === 1 && kept[0].t !== undefined) {
    into.push({ r: "text", s: kept[0].t, p: boxOf(rectOf(element)), y: kept[0].y });
  } else into.push({ b: 1, c: kept });
}

// A hidden checkbox whose label is styled as one: clicks go to the label.
function visitStandIn(label, role, into, inner) {
  const box = label.control;
  const node = { r: role, n: numberOf(label), s: clean(textBelow(label, box), NAME_CHARS) || fieldName(box) };
  const flags = flagsOf(box, role, walk.focused);
  if (flags.length) node.f = flags;
  if (inner.side) node.y = inner.side;
  if (walk.limits.boxes) node.p = boxOf(rectOf(label));
  walk.numbered++;
  walk.chars += 20 + node.s.length;
  into.push(node);
}

function isShown(element) {
  const rect = rectOf(element);
  if (rect.width <= 1 || rect.height <= 1) return false;
  const style = getComputedStyle(element);
  if (style.visibility !== "visible" || style.pointerEvents === "none") return false;
  return style.display !== "none" && (style.clip === "auto" || style.clip === "") && rect.right + scrollX > 0 && rect.bottom + scrollY > 0;
}

// The visibility of an element and its content, or null if nothing of them can be visible.
function placeWithin(element, tag, style, display, place) {
  if (style.opacity === "0" && !is(element, "input")) return null;
  const hidden = style.visibility !== "visible";
  const within = { ...place, rect: null, unseen: hidden || place.outside, depth: place.depth + 1 };
  if (display === "inline" || display === "contents") return within; // has the position of its line
  if (style.contentVisibility === "hidden") return null;
  const position = style.position;
  if (position === "fixed" || (position === "absolute" && place.clip && !place.clipPositioned)) within.clip = null;
  if (position !== "static" && folded(style.clip)) return null;
  const rect = (within.rect = rectOf(element));
  if (rect.width > 0 || rect.height > 0) {
    within.outside =
      (within.clip !== null && !overlap(rect, within.clip)) ||
      (!place.scrolls && ((rect.right + scrollX <= 0 && !walk.rightToLeft) || rect.bottom + scrollY <= 0));
    within.side = rect.top >= place.view.bottom ? 1 : rect.bottom <= place.view.top ? -1 : 0;
  }
  within.unseen = hidden || within.outside;
  if (tag === "body" || tag === "html") return within;
  const overflowX = style.overflowX, overflowY = style.overflowY;
  if (overflowX === "visible" && overflowY === "visible") return within;
  if (rect.width <= 1 || rect.height <= 1) {
    // Collapsed, or for screen readers only. Content positioned elsewhere, such as a notification, is still shown.
    within.clip = NOWHERE;
    within.clipPositioned = position !== "static";
    within.outside = within.unseen = true;
    return within;
  }
  if (scrollable(overflowX) || scrollable(overflowY)) {
    within.view = intersection(place.view, rect);
    within.clip = null;
    within.scrolls = true; // so that what is above or left of the document can be scrolled into view
  } else {
    within.clip = within.clip ? intersection(within.clip, rect) : rect;
    within.clipPositioned = position !== "static";
  }
  return within;
}

const NOWHERE = { left: Infinity, top: Infinity, right: -Infinity, bottom: -Infinity };
const folded = (clip) => clip === "rect(0px, 0px, 0px, 0px)" || clip === "rect(1px, 1px, 1px, 1px)";
const scrollable = (overflow) => overflow === "auto" || overflow === "scroll";
const overlap = (a, b) => a.left < b.right && a.right > b.left && a.top < b.bottom && a.bottom > b.top;
const intersection = (a, b) => ({
  left: Math.max(a.left, b.left), top: Math.max(a.top, b.top),
  right: Math.min(a.right, b.right), bottom: Math.min(a.bottom, b.bottom),
});

function scrollsItself(element, tag, style) {
  if (tag === "body" || tag === "html" || is(element, "textarea") || is(element, "select")) return false;
  return scrollable(style.overflowY) && scrollHeight(element) > clientHeight(element) + 2 && clientHeight(element) > 20;
}

// Set the name of a node, and the part of its content that is listed below it.
function nameNode(node, element, role, tag, children, isField, byContent) {
  let name = "";
  if (is(element, "input") && role === "button") name = statedName(element) || buttonText(element);
  else if (isField) name = fieldName(element);
  else if (role === "image") name = statedName(element) || cleanAttribute(element, "alt") || cleanAttribute(element, "title");
  else if (role === "group" && tag === "fieldset") name = statedName(element) || legendOf(element, children);
  else name = statedName(element);
  let kept = children;
  if ((byContent || NAMED_BY_CONTENT.has(role)) && !isField) {
    const { text, plain } = flat(children);
    if (plain && !name && text.length <= NAME_CHARS) {
      name = text;
      kept = [];
    } else if (plain && name && (!text || text.length < 3 || name.includes(text))) kept = [];
    else if (plain && !name && role !== "heading" && node.n !== undefined) name = clean(text, 100);
    if (!name && !kept.length) name = cleanAttribute(element, "title") || cleanAttribute(element, "alt");
  }
  node.s = name;
  if (kept.length) node.c = kept;
}

function buttonText(input) {
  if (input.type === "image") return cleanAttribute(input, "alt") || cleanAttribute(input, "title") || "Submit";
  const standard = { submit: "Submit", reset: "Reset" }[input.type] ?? "";
  return clean(input.value, NAME_CHARS) || cleanAttribute(input, "title") || standard;
}

function legendOf(fieldset, children) {
  for (let child = firstChild(fieldset); child; child = nextSibling(child)) {
    if (nodeType(child) === ELEMENT && localName(child) === "legend") {
      const text = clean(textBelow(child, null), NAME_CHARS);
      const first = children[0];
      if (first && flat([first]).plain && flat([first]).text === text) children.shift();
      return text;
    }
  }
  return "";
}

// The text of a list of nodes, and whether they contain only text: no number, no table.
function flat(nodes) {
  let text = "", plain = true;
  for (const node of nodes) {
    if (node.t !== undefined) text += ` ${node.t}`;
    else {
      if (node.n !== undefined || node.r === "frame" || node.r === "table" || node.r === "row") plain = false;
      if (node.n === undefined && node.s) text += ` ${node.s}`;
      if (node.c) {
        const below = flat(node.c);
        text += ` ${below.text}`;
        plain = plain && below.plain;
      }
    }
    if (text.length > TEXT_CHARS) break;
  }
  return { text: text.replace(/ +/g, " ").trim(), plain };
}

function visitSvg(element, style, into, inner, newCursor) {
  const rect = inner.rect ?? rectOf(element);
  if (inner.unseen || rect.width === 0 || rect.height === 0) return;
  const name = statedName(element) || svgTitle(element);
  const children = [];
  if (walk.limits.boxes || (rect.width >= 60 && rect.height >= 60)) visitShapes(element, children, inner, { left: 200 }, inner.cursor);
  else visitShapes(element, children, inner, { left: 0 }, null);
  const role = explicitRole(element);
  const clickable = INTERACTIVE.has(role) || usesOf(element, "svg", newCursor) !== 0;
  const node = { r: clickable ? role || "clickable" : "image", s: name, i: 1 };
  if (clickable) {
    node.n = numberOf(element);
    walk.numbered++;
    if (!name && !children.length) node.a = looks(element, style, rect);
  }
  if (walk.limits.boxes) node.p = boxOf(rect);
  if (children.length) node.c = children;
  if (clickable || name || children.length) into.push(node);
}

function svgTitle(element) {
  for (let child = firstChild(element); child; child = nextSibling(child)) {
    if (nodeType(child) === ELEMENT && localName(child) === "title") return clean(child.textContent, NAME_CHARS);
  }
  return "";
}

const SHAPES = new Set(["circle", "ellipse", "rect", "line", "path", "polygon", "polyline", "image", "use", "text"]);

const OUTLINED = new Set(["line", "path", "polygon", "polyline"]);

// `outer` is the cursor of the parent if it invites to use the mouse, or null if cursors do not count.
function visitShapes(parent, into, place, budget, outer) {
  for (let element = firstChild(parent); element; element = nextSibling(element)) {
    if (nodeType(element) !== ELEMENT) continue;
    if (++walk.visited > walk.limits.nodes || place.depth > DEEPEST) {
      walk.cut = true;
      return;
    }
    const tag = localName(element);
    if (tag === "defs" || tag === "title" || tag === "desc" || tag === "style" || tag === "symbol" || tag === "clipPath" || tag === "mask") continue;
    const style = getComputedStyle(element);
    if (style.display === "none" || style.visibility !== "visible" || style.opacity === "0") continue;
    const cursor = outer !== null && INVITING.has(style.cursor) ? style.cursor : "";
    const clickable = controlRole(element, tag) === "link" || usesOf(element, tag, cursor !== "" && cursor !== outer) !== 0;
    const shape = SHAPES.has(tag);
    const children = [];
    if (tag === "foreignObject") visitAll(element, children, { ...place, depth: place.depth + 1 });
    else if (!shape) visitShapes(element, children, { ...place, depth: place.depth + 1 }, budget, outer === null ? null : cursor);
    if (!clickable && !(shape && budget.left > 0)) {
      into.push(...children);
      continue;
    }
    const rect = rectOf(element);
    if (rect.width === 0 && rect.height === 0) continue;
    const text = tag === "text" ? clean(element.textContent, NAME_CHARS) : "";
    budget.left--;
    if (text && !clickable && !walk.limits.boxes) {
      into.push({ t: text }, { b: 1 });
      continue;
    }
    const node = { r: tag === "g" ? "clickable" : tag === "a" ? "link" : tag, s: statedName(element) || svgTitle(element) || text || flat(children).text };
    if (clickable && walk.numbered < MOST_NUMBERED) {
      node.n = numberOf(element);
      walk.numbered++;
    }
    if (!node.s) node.a = looks(element, style, rect);
    if (walk.limits.boxes) {
      node.a = looks(element, style, rect);
      node.p = boxOf(rect);
      if (OUTLINED.has(tag)) node.q = outlineOf(element);
    }
    if (children.length && !flat(children).plain) node.c = children;
    walk.chars += 60;
    into.push(node);
  }
}

function addFrame(element, into, inner) {
  const node = { r: "frame", s: cleanAttribute(element, "title") || cleanAttribute(element, "aria-label") || cleanAttribute(element, "name") };
  const child = element.contentWindow;
  for (let index = 0; index < Math.min(window.length, 100); index++) {
    if (window[index] === child) node.frame = index;
  }
  if (walk.limits.boxes) {
    const rect = rectOf(element), scale = element.offsetWidth ? rect.width / element.offsetWidth : 1;
    const { paddingLeft, paddingTop } = getComputedStyle(element);
    const inset = (border, padding) => (border + Number.parseFloat(padding)) * scale;
    node.p = boxOf(rect);
    node.at = [rect.left + inset(element.clientLeft, paddingLeft), rect.top + inset(element.clientTop, paddingTop), scale];
  }
  if (inner.side) node.y = inner.side;
  into.push(node);
}

function focusedElement() {
  let element = activeElement(document);
  while (element) {
    const root = shadowRoot(element) ?? closedRoots.get(element);
    if (!root?.activeElement) break;
    element = root.activeElement;
  }
  return element === body(document) || element === documentElement(document) ? null : element;
}

// Called by rllm_gym.envs.web.browser

function observe(limits) {
  next = Math.max(next, limits.first);
  askForListeners();
  const root = documentElement(document);
  const whole = [document, root, body(document)].reduce((kinds, node) => (node ? kinds | (listening.get(node) ?? 0) : kinds), 0);
  walk = {
    limits, visited: 0, numbered: 0, chars: 0, cut: false, hosts: [], focused: focusedElement(),
    hovers: hoverSelector(), offers: whole & (HOVER | MENU | DROP),
    rightToLeft: root !== null && getComputedStyle(root).direction === "rtl",
  };
  const tree = [];
  const place = {
    rect: null, unseen: false, outside: false, side: 0, clip: null, clipPositioned: false, cursor: "", isButton: false, isPart: false, zone: null, depth: 0,
    view: { left: 0, top: 0, right: innerWidth, bottom: innerHeight },
  };
  const modals = [...querySelectorAll(document, ":modal")];
  const modal = modals[modals.length - 1];
  if (modal) visit(modal, tree, place);
  else if (root) visit(root, tree, place);
  const page = scrollingElement(document) ?? root;
  let own = 0;
  if (window !== window.parent) while (own < 100 && window.parent[own] !== window) own++;
  const result = {
    tree, next, cut: walk.cut, modal: modal !== undefined, url: location.href, own, hosts: walk.hosts.length,
    title: clean(title(document), NAME_CHARS),
    scroll: page ? [Math.round(scrollY), Math.max(0, scrollHeight(page) - innerHeight), Math.round(scrollX), Math.max(0, scrollWidth(page) - innerWidth)] : [0, 0, 0, 0],
  };
  hosts = walk.hosts;
  walk = undefined;
  return result;
}

// Elements of the latest walk that may have a closed shadow tree; each is requested once.
let hosts = [];

function takeHosts() {
  for (const host of hosts) knownHosts.add(host);
  return hosts.splice(0);
}

function noteClosed(...found) {
  for (let at = 0; at + 1 < found.length; at += 2) closedRoots.set(found[at], found[at + 1]);
}
