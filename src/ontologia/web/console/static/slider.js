// The time slider: a range over all commits beside the field, and ← → to step.
const SCROLL = "ontologia_scroll";

function build() {
  const bar = document.getElementById("timebar");
  const place = bar?.querySelector(".slide");
  const head = Number(bar?.dataset.head); // commits are counted one by one: far from 2**53
  if (!place || place.firstChild || !(head > 1)) return;
  const field = bar.querySelector("#as_of");
  const range = document.createElement("input");
  range.type = "range";
  range.min = "1";
  range.max = String(head);
  range.value = bar.dataset.at;
  range.setAttribute("aria-label", "Commit that is shown");
  const at = document.createElement("output");
  let wanted = 0;
  const name = () => (range.value === range.max ? "now" : `commit ${Number(range.value).toLocaleString("en")}`);
  range.addEventListener("input", () => {
    at.textContent = name();
    range.setAttribute("aria-valuetext", name());
    clearTimeout(wanted);
    if (range.value !== range.max) wanted = setTimeout(tell, 120, range.value);
  });
  range.addEventListener("change", () => {
    field.value = range.value === range.max ? "" : range.value;
    keepPlace();
    bar.requestSubmit();
  });
  async function tell(number) {
    if (!bar.dataset.time) return;
    try {
      const url = new URL(bar.dataset.time, location.href);
      url.searchParams.set("id", number);
      const response = await fetch(url, { credentials: "same-origin" });
      const text = response.ok ? await response.text() : "";
      if (text && range.value === number) at.textContent = `${name()}, ${text}`;
    } catch { /* the number is enough */ }
  }
  place.append(range, at);
  place.hidden = false;
}

// A step through time stays where the page was scrolled to.
function keepPlace() {
  sessionStorage.setItem(SCROLL, `${location.pathname} ${scrollY}`);
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
  if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
  const target = event.target;
  if (target.closest?.("input, select, textarea, [contenteditable]") || document.querySelector("dialog[open]")) return;
  const box = target.closest?.(".scroll, pre");
  if (box && box.scrollWidth > box.clientWidth) return; // there the keys scroll
  const link = document.querySelector(`#timebar a[rel=${event.key === "ArrowLeft" ? "prev" : "next"}]`);
  if (!link) return;
  event.preventDefault();
  link.click();
});
document.addEventListener("click", (event) => {
  if (event.target.closest?.("#timebar a")) keepPlace();
});

const [path, top] = (sessionStorage.getItem(SCROLL) || "").split(" ");
sessionStorage.removeItem(SCROLL);
if (path === location.pathname && !location.hash) scrollTo(0, Number(top));
build();
document.addEventListener("console:morphed", build);
