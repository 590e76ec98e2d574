// Keys, the theme, dialogs in place of confirmation pages, and local times.
import { fetchPage } from "./live.js";

const typing = (target) => target.closest?.("input, select, textarea, [contenteditable]");
const keys = document.getElementById("keys");
let leader = false;

const rows = () => [...document.querySelectorAll("#main tbody tr")].filter((row) => row.querySelector("a"));
function step(by) {
  const all = rows();
  if (!all.length) return;
  const at = all.findIndex((row) => row.contains(document.activeElement));
  const next = all[at < 0 ? (by > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + by))];
  next.querySelector("a").focus();
  next.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
  if (document.querySelector("dialog[open]")) return;
  const key = event.key;
  if (leader) {
    leader = false;
    const link = document.querySelector(`.side a[data-key="${CSS.escape(key)}"]`);
    if (link) {
      event.preventDefault();
      link.click();
    }
    return;
  }
  if (key === "g") {
    leader = true;
    setTimeout(() => { leader = false; }, 1500);
  } else if (key === "/") {
    const box = document.querySelector("#search, .filter input:not([type=hidden])");
    if (box) {
      event.preventDefault();
      box.focus();
      box.select();
    }
  } else if (key === "j") step(1);
  else if (key === "k") step(-1);
  else if (key === "?") keys?.showModal();
});

const help = document.getElementById("help");
if (help) {
  help.hidden = false;
  help.addEventListener("click", () => keys.showModal());
}

const theme = document.getElementById("theme");
if (theme) {
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    const home = new URL(document.querySelector(".top .brand").href).pathname;
    document.cookie = `ontologia_theme=${root.dataset.theme}; path=${home}; max-age=31536000; samesite=lax`;
  });
}

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-submit]")) event.target.form.requestSubmit();
  if (event.target.matches("[data-all]")) {
    for (const box of event.target.closest("form").querySelectorAll("input[type=checkbox][name]"))
      box.checked = event.target.checked;
  }
});

// A form that leads to a confirmation page: the page is shown in a dialog instead.
const dialog = document.getElementById("dialog");
document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!dialog || !form.matches("form[data-dialog]")) return;
  event.preventDefault();
  // Without the attribute, formAction is the page itself.
  const other = event.submitter?.hasAttribute("formaction") && event.submitter.formAction;
  const target = new URL(other || form.action);
  target.search = new URLSearchParams(new FormData(form, event.submitter)).toString();
  try {
    const { response, page } = await fetchPage(target);
    const asked = page.getElementById("confirm");
    if (!response.ok || !asked) throw new Error(String(response.status));
    dialog.replaceChildren(document.adoptNode(asked));
    dialog.showModal();
    dialog.querySelector("[autofocus]")?.focus();
  } catch {
    location.href = target.href; // the page itself says what is wrong
  }
});
dialog?.addEventListener("click", (event) => {
  if (event.target === dialog || event.target.closest("[data-close]")) {
    event.preventDefault();
    dialog.close();
  }
});

document.addEventListener("mouseover", (event) => {
  const time = event.target.closest?.("time[datetime]");
  if (!time || time.dataset.local) return;
  time.dataset.local = "1";
  const local = new Date(time.dateTime).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
  time.title = `${time.title}\n${local} (here)`;
});
