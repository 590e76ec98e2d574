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

/** Give rows an id by what they link to, so that a row is morphed into itself, wherever it is now. */
function nameRows(root) {
  root.querySelectorAll("tbody").forEach((body, number) => {
    const known = new Set();
    for (const row of body.rows) {
      const name = `row-${number}-${row.querySelector("a[href]")?.getAttribute("href")}`;
      if (!row.id && !known.has(name)) row.id = name;
      known.add(name);
    }
  });
}

let refused = false; // the stream; the page is fetched from time to time then
const sayFresh = () => (refused ? say("away", "updated every 15 s") : say("live", "live"));

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
      nameRows(main);
      nameRows(fresh);
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
      sayFresh();
      document.dispatchEvent(new Event("console:morphed"));
    } else say("away", response.status === 503 ? "database away, retrying" : "not up to date");
  } catch {
    say("away", "server away, retrying");
  } finally {
    running = false;
    if (again) refresh(); // something changed meanwhile
  }
}

if (main?.hasAttribute("data-live") && url) {
  const name = `ontologia${url}`;
  const channel = new BroadcastChannel(name);
  let source = null;
  let held = false; // whether the stream is this tab's
  let release = null;
  let waiting = null;

  const heard = (changed) => {
    if (changed.includes("away")) say("away", "database away, retrying");
    else if (changed.includes("lost")) say("away", "server away, retrying");
    else refresh();
  };
  const tell = (changed) => {
    channel.postMessage(changed);
    heard(changed);
  };
  channel.onmessage = (message) => heard(message.data);

  const open = () => {
    let failures = 0;
    held = true;
    source = new EventSource(url);
    source.onopen = () => {
      const gap = failures || refused; // what happened meanwhile was not told
      failures = 0;
      refused = false;
      if (gap) tell(["back"]);
      else sayFresh();
    };
    source.onmessage = (message) => tell(JSON.parse(message.data));
    source.onerror = () => {
      failures += 1; // once is the end of a stream, which is opened again
      if (source?.readyState === EventSource.CLOSED) {
        source = null;
        refused = true;
        refresh(); // shows why: signed out, or a page that is as it was, and too many streams
        setTimeout(() => held && !source && open(), REFRESH);
      } else if (failures > 1) tell(["lost"]);
    };
  };
  const close = () => {
    waiting?.abort();
    source?.close();
    release?.();
    held = false;
    source = release = waiting = null;
  };
  // One stream for all tabs: browsers open six connections to a server, and no more.
  const begin = () => {
    if (held || waiting) return;
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
