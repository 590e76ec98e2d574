// The time slider: a range over all commits, in place of typing a number.
function build() {
  const bar = document.getElementById("timebar");
  const place = bar?.querySelector(".slide");
  const head = Number(bar?.dataset.head); // commits are counted one by one: far from 2**53
  if (!place || place.firstChild || !(head > 0)) return;
  const field = bar.querySelector("#as_of");
  const range = document.createElement("input");
  range.type = "range";
  range.min = "0";
  range.max = String(head);
  range.value = /^\d+$/.test(field.value) ? field.value : String(head);
  range.setAttribute("aria-label", "Commit that is shown");
  const at = document.createElement("output");
  range.addEventListener("input", () => {
    at.textContent = range.value === range.max ? "now" : `commit ${range.value}`;
  });
  range.addEventListener("change", () => {
    field.value = range.value === range.max ? "" : range.value;
    bar.requestSubmit();
  });
  place.append(range, at);
  place.hidden = false;
}
build();
document.addEventListener("console:morphed", build);
