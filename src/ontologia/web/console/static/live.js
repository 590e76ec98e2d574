// Fetches the page again when the server says that something changed, and morphs what differs.
const policy = window.trustedTypes
  ? window.trustedTypes.createPolicy("console", { createHTML: (text) => text })
  : { createHTML: (text) => text };
const REFRESH = 15_000; // ages and leases go on without an event
const shown = document.getElementById("live");
const main = document.getElementById("main");
const url = shown?.dataset.url;

/** A page of this console as a document. Only what this server rendered is ever parsed. */
export async function fetchPage(target, options = {}) {
  const response = await fetch(target, { credentials: "same-origin", ...options });
  if (new URL(response.url).origin !== location.origin) throw new Error("another origin");
  const text = await response.text();
  return { response, page: new DOMParser().parseFromString(policy.createHTML(text), "text/html") };
}

function say(state, text) {
  if (!shown) return;
  shown.dataset.state = state;
  if (shown.textContent !== text) shown.textContent = text;
}

let running = false;
let again = false;

function busy() {
  return document.hidden || document.querySelector("dialog[open]") || !getSelection().isCollapsed;
}

async function refresh() {
  if (running || busy()) {
    again = true;
    return;
  }
  running = true;
  again = false;
  try {
    const { response, page } = await fetchPage(location.href);
    const fresh = page.getElementById("main");
    if (response.redirected || response.status === 401) location.reload();
    else if (response.ok && fresh && page.getElementById("live")) {
      Idiomorph.morph(main, fresh, {
        morphStyle: "outerHTML",
        ignoreActiveValue: true,
        callbacks: {
          beforeAttributeUpdated: (name, node) =>
            !((name === "open" && node.matches("details, dialog")) ||
              (["checked", "value"].includes(name) && node.matches("input, textarea, option"))),
          beforeNodeMorphed: (node) => !(node.matches?.("[data-keep]")),
        },
      });
      say("live", "live");
      document.dispatchEvent(new Event("console:morphed"));
    } else say("away", response.status === 503 ? "database away, retrying" : "not up to date");
  } catch {
    say("away", "server away, retrying");
  } finally {
    running = false;
  }
}

if (main?.hasAttribute("data-live") && url) {
  const name = `ontologia${url}`;
  const channel = new BroadcastChannel(name);
  let source = null;
  let release = null;
  let waiting = null;

  const heard = (changed) => {
    if (changed.includes("away")) say("away", "database away, retrying");
    else refresh();
  };
  channel.onmessage = (message) => heard(message.data);

  const open = () => {
    source = new EventSource(url);
    let opened = false;
    source.onopen = () => {
      say("live", "live");
      if (opened) refresh(); // what happened between two streams was not told
      opened = true;
    };
    source.onmessage = (message) => {
      const changed = JSON.parse(message.data);
      channel.postMessage(changed);
      heard(changed);
    };
    source.onerror = () => {
      if (source?.readyState === EventSource.CLOSED) say("away", "not live");
    };
  };
  const close = () => {
    waiting?.abort();
    source?.close();
    release?.();
    source = release = waiting = null;
  };
  // One stream for all tabs: browsers open six connections to a server, and no more.
  const begin = () => {
    if (source || waiting) return;
    if (!navigator.locks) return open();
    waiting = new AbortController();
    navigator.locks
      .request(name, { signal: waiting.signal }, () => new Promise((resolve) => {
        release = resolve;
        open();
      }))
      .catch(() => {});
    say("live", "live");
  };
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else {
      begin();
      refresh();
    }
  });
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", (event) => event.persisted && begin());
  document.addEventListener("selectionchange", () => again && !busy() && refresh());
  document.addEventListener("close", () => again && refresh(), true);
  setInterval(refresh, REFRESH);
  if (!document.hidden) begin();
}
