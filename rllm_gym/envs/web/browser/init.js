// Runs in every document before the page's own scripts and disables what one page could disturb other episodes with.
(() => {
  // The browser sends no UDP around its proxy; this also removes the API that would request it.
  for (const name of ["RTCPeerConnection", "webkitRTCPeerConnection"]) delete globalThis[name];

  // The proxy does not see requests that a service worker answers.
  if (globalThis.ServiceWorkerContainer) ServiceWorkerContainer.prototype.register = async () => {};

  // Every request of a page is reported to this process, and every console message and uncaught error to the browser's
  // process. A script that produces them in a loop delays the episodes that share these processes. Messages and errors
  // are not used, so they are dropped; with a hundred requests pending, further requests fail at once.
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
