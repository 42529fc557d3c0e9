// Runs in every document before the page's own scripts and remembers which nodes its scripts listen on for the mouse.
// Observations need this, and only scripts of the same world can know it.
//
// elements.js asks with an event whose name no page knows, and receives the nodes in events too. The page cannot notice
// it or change it: the functions replaced here are proxies, which look like the native ones, and later nothing is read
// that the page's scripts could have replaced. That is why objects here have no prototype and arrays are not iterated.
(() => {
  const ASK = "LISTENER_EVENT";
  const CLICK = 1, HOVER = 2, MENU = 4, DROP = 8, PRESS = 16; // as in elements.js
  const KINDS = {
    __proto__: null,
    click: CLICK, dblclick: CLICK, mouseup: CLICK, pointerup: CLICK, mousemove: CLICK, touchend: CLICK,
    mousedown: PRESS, pointerdown: PRESS, touchstart: PRESS,
    mouseenter: HOVER, mouseover: HOVER, pointerenter: HOVER, pointerover: HOVER,
    contextmenu: MENU, drop: DROP, dragover: DROP, dragenter: DROP,
  };
  // React listens for everything on one node and keeps the handlers of each element in a property of the element.
  const DISPATCHER_TYPES = 12;
  const PROPS = "__reactProps$";
  const HANDLERS = {
    __proto__: null,
    onClick: CLICK, onDoubleClick: CLICK, onMouseUp: CLICK, onPointerUp: CLICK, onTouchEnd: CLICK,
    onMouseDown: PRESS, onPointerDown: PRESS, onTouchStart: PRESS,
    onMouseEnter: HOVER, onMouseOver: HOVER, onPointerEnter: HOVER, onPointerOver: HOVER,
    onContextMenu: MENU, onDrop: DROP, onDragOver: DROP, onDragEnter: DROP,
  };
  const MOST = 20_000;

  const { apply, ownKeys } = Reflect;
  const { defineProperty, getOwnPropertyDescriptor: own } = Object;
  const uncurried = (call) => (self, ...args) => apply(call, self, args);
  const getter = (prototype, name) => uncurried(own(prototype, name).get);
  const nodeType = getter(Node.prototype, "nodeType");
  const querySelectorAll = uncurried(Document.prototype.querySelectorAll), lengthOf = getter(NodeList.prototype, "length");
  const add = uncurried(EventTarget.prototype.addEventListener), dispatch = uncurried(EventTarget.prototype.dispatchEvent);
  const recordOf = uncurried(WeakMap.prototype.get), setRecord = uncurried(WeakMap.prototype.set);
  const insert = uncurried(Set.prototype.add), remove = uncurried(Set.prototype.delete), sizeOf = getter(Set.prototype, "size");
  const alive = uncurried(WeakRef.prototype.deref), startsWith = uncurried(String.prototype.startsWith);
  const world = globalThis, { iterator } = Symbol;
  const Weak = WeakRef, Callbacks = Set, Carrier = PointerEvent, Wrapper = Proxy;

  const records = new WeakMap(); // node -> {types: type -> its callbacks, or true, kinds, props, changed}
  let changed = null; // a linked list of weak references to the nodes of which the asker does not know the latest kinds
  let count = 0, most = MOST;
  let dispatchers = false;

  function recordFor(node) {
    let record = recordOf(records, node);
    if (record === undefined) {
      record = { __proto__: null, types: { __proto__: null }, kinds: 0, props: 0, changed: false };
      setRecord(records, node, record);
    }
    return record;
  }

  function noteChange(node, record) {
    if (record.changed) return;
    record.changed = true;
    changed = { __proto__: null, ref: new Weak(node), next: changed };
    if (++count < most) return;
    let kept = null;
    count = 0;
    for (let at = changed; at !== null; at = at.next) {
      if (alive(at.ref) === undefined) continue;
      kept = { __proto__: null, ref: at.ref, next: kept };
      count++;
    }
    changed = kept;
    most = count + MOST;
  }

  function note(target, type, callback, lasting, added) {
    if (typeof type !== "string" || KINDS[type] === undefined) return;
    if (typeof callback !== "function" && (typeof callback !== "object" || callback === null)) return;
    const node = target === world || target === undefined || target === null ? document : target;
    try {
      nodeType(node);
    } catch {
      return; // not a node
    }
    const record = recordFor(node), { types } = record;
    const callbacks = types[type];
    if (callbacks === true) return;
    if (added) {
      if (lasting) types[type] = true;
      else insert((types[type] = callbacks ?? new Callbacks()), callback);
    } else if (callbacks !== undefined && !lasting) {
      remove(callbacks, callback);
      if (sizeOf(callbacks) === 0) delete types[type];
    }
    let kinds = 0, size = 0;
    for (const name in types) {
      kinds |= KINDS[name];
      size++;
    }
    if (size >= DISPATCHER_TYPES) {
      dispatchers = true;
      kinds = 0;
    }
    if (kinds === record.kinds) return;
    record.kinds = kinds;
    noteChange(node, record);
    add(world, ASK, tell, true); // again, because document.open() removes it
  }

  function noteProps() {
    const nodes = querySelectorAll(document, "*"), length = lengthOf(nodes);
    for (let at = 0; at < length && at < MOST; at++) {
      const keys = ownKeys(nodes[at]);
      for (let index = 0; index < keys.length; index++) {
        if (typeof keys[index] !== "string" || !startsWith(keys[index], PROPS)) continue;
        const values = own(nodes[at], keys[index]).value;
        if (typeof values !== "object" || values === null) continue;
        let props = 0;
        for (const name in HANDLERS) if (typeof own(values, name)?.value === "function") props |= HANDLERS[name];
        const record = props ? recordFor(nodes[at]) : recordOf(records, nodes[at]);
        if (record === undefined || record.props === props) continue;
        record.props = props;
        noteChange(nodes[at], record);
      }
    }
  }

  // Answer a question: one event for each combination of kinds, with an event for each node in it. Only such inner
  // events, which are not dispatched themselves, carry nodes out of shadow trees.
  function tell() {
    if (dispatchers) noteProps();
    const groups = { __proto__: null };
    for (let sent = 0; changed !== null && sent < MOST; changed = changed.next, count--, sent++) {
      const node = alive(changed.ref);
      if (node === undefined) continue;
      const record = recordOf(records, node), kinds = record.kinds | record.props;
      record.changed = false;
      const inner = new Carrier(ASK, { __proto__: null, relatedTarget: node });
      groups[kinds] = { __proto__: null, value: inner, next: groups[kinds] ?? null };
    }
    for (const kinds in groups) {
      const predictedEvents = { __proto__: null, [iterator]: () => values(groups[kinds]) };
      dispatch(world, new Carrier(`${ASK}!`, { __proto__: null, pointerId: +kinds, predictedEvents }));
    }
  }

  const values = (list) => ({
    __proto__: null,
    next() {
      const item = list;
      if (item !== null) list = item.next;
      return { __proto__: null, done: item === null, value: item?.value };
    },
  });

  // Replace a function of a property by one that calls it and then another one.
  function extend(object, name, part, after) {
    const property = own(object, name);
    if (!property?.[part]) return;
    const call = property[part];
    const handler = {
      __proto__: null,
      apply(_, self, args) {
        const result = apply(call, self, args);
        after(self, args);
        return result;
      },
    };
    property[part] = new Wrapper(call, handler);
    defineProperty(object, name, property);
  }

  for (const name of ["addEventListener", "removeEventListener"]) {
    extend(EventTarget.prototype, name, "value", (self, args) => {
      if (args.length < 2) return;
      // Options are not read, because the page could notice that: a listener with options is taken to last.
      const lasting = args.length > 2 && args[2] !== false && args[2] !== undefined;
      note(self, args[0], args[1], lasting, name === "addEventListener");
    });
  }
  const handler = () => {}; // stands for the value of a property
  for (const type in KINDS) {
    for (const object of [HTMLElement.prototype, SVGElement.prototype, MathMLElement.prototype, Document.prototype, world]) {
      extend(object, `on${type}`, "set", (self, args) => {
        const value = args.length > 0 ? args[0] : null;
        note(self, type, handler, false, typeof value === "function" || (typeof value === "object" && value !== null));
      });
    }
  }
  add(world, ASK, tell, true);
})();
