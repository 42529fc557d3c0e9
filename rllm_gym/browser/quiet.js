// Runs in every document before the page's own scripts, and takes away what a page could disturb others with.
(() => {
  // The browser sends no UDP past its proxy; pages do not even get what would ask it to.
  for (const name of ["RTCPeerConnection", "webkitRTCPeerConnection"]) delete globalThis[name];

  // What a service worker answers, the gateway does not see.
  if (globalThis.ServiceWorkerContainer) ServiceWorkerContainer.prototype.register = async () => {};

  // Every request of a page is told to this process, every console message and uncaught error to the browser's own, and
  // those of a script that makes them in a loop keep the episodes waiting that share it. Nobody here reads messages and
  // errors, and past a hundred requests that wait for an answer, more fail at once.
  for (const name of Object.keys(console)) {
    if (typeof console[name] === "function") console[name] = () => {};
  }
  for (const kind of ["error", "unhandledrejection"]) addEventListener(kind, (event) => event.preventDefault());

  const most = 100;
  const { apply } = Reflect;
  const { fetch } = globalThis;
  const { send } = XMLHttpRequest.prototype;
  let waiting = 0;
  const over = () => { waiting--; };
  globalThis.fetch = function (...details) {
    if (waiting >= most) return Promise.reject(new TypeError("Failed to fetch"));
    waiting++;
    const answer = apply(fetch, this, details);
    answer.then(over, over);
    return answer;
  };
  XMLHttpRequest.prototype.send = function (...details) {
    if (waiting >= most) return this.abort();
    waiting++;
    this.addEventListener("loadend", over, { once: true });
    return apply(send, this, details);
  };
})();
