"use strict";
// The page reads without this: it sorts tables, unfolds the contents where there is room, and tells what marks mean.

// The figure that a cell's text begins with, or the text itself; a mark of a footnote does not count.
function sortKey(cell) {
  const text = cell.textContent.replace(/ \[\d+\]$/, "").trim();
  const found = /^[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?/i.exec(text);
  return found ? [0, Number(found[0]), text] : [1, 0, text];
}

function compare(one, other) {
  return one[0] - other[0] || one[1] - other[1] || (one[2] < other[2] ? -1 : Number(one[2] > other[2]));
}

// Ascending, descending, as written: words stay below figures either way.
function sortBy(table, place) {
  const header = table.tHead.rows[0].cells[place];
  const next = { none: "ascending", ascending: "descending", descending: "none" }[header.getAttribute("aria-sort") || "none"];
  for (const cell of table.tHead.rows[0].cells) cell.removeAttribute("aria-sort");
  if (next !== "none") header.setAttribute("aria-sort", next);
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => ({ row, key: sortKey(row.cells[place]), written: Number(row.dataset.written) }));
  rows.sort((a, b) => {
    if (next === "none") return a.written - b.written;
    const order = a.key[0] === b.key[0] && next === "descending" ? compare(b.key, a.key) : compare(a.key, b.key);
    return order || a.written - b.written;
  });
  body.append(...rows.map((item) => item.row));
}

for (const table of document.querySelectorAll("main table")) {
  [...table.tBodies[0].rows].forEach((row, number) => { row.dataset.written = number; });
  [...table.tHead.rows[0].cells].forEach((cell, place) => {
    // No <button>: Chromium does not repeat a header that holds one on the pages of a print.
    const button = document.createElement("span");
    button.setAttribute("role", "button");
    button.tabIndex = 0;
    button.append(...cell.childNodes);
    button.addEventListener("click", () => sortBy(table, place));
    button.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sortBy(table, place); }
    });
    cell.append(button);
  });
}

// Statuses and marks tell in a tooltip what the legend and the lines below a table say.
const meanings = new Map([...document.querySelectorAll("#statuses dt")].map((term) => [term.textContent, term.nextElementSibling.textContent]));
for (const status of document.querySelectorAll(".status")) {
  status.classList.add(status.textContent);
  status.title = meanings.get(status.textContent) || "";
}
for (const mark of document.querySelectorAll("a.mark")) {
  const line = document.getElementById(mark.getAttribute("href").slice(1));
  if (line) mark.title = line.textContent;
}

// A table's file is held compressed; where the browser can, it is saved as plain CSV.
async function savePlain(link) {
  const packed = Uint8Array.from(atob(link.href.split(",")[1]), (letter) => letter.charCodeAt(0));
  const plain = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).blob();
  const saved = document.createElement("a");
  saved.href = URL.createObjectURL(new Blob([plain], { type: "text/csv" }));
  saved.download = link.download.replace(/\.gz$/, "");
  saved.click();
  setTimeout(() => URL.revokeObjectURL(saved.href), 10000);
}

if (typeof DecompressionStream === "function") {
  for (const link of document.querySelectorAll("a.csv")) {
    link.addEventListener("click", (event) => { event.preventDefault(); savePlain(link); });
  }
}

const contents = document.getElementById("contents");
const roomy = matchMedia("(min-width: 64rem)");
const unfold = () => { contents.open = roomy.matches; };
roomy.addEventListener("change", unfold);
unfold();
contents.addEventListener("click", (event) => {
  if (event.target.closest("a") && !roomy.matches) contents.open = false;
});
addEventListener("beforeprint", () => { document.getElementById("statuses").open = true; });

// The contents show where the reader is.
const links = new Map([...contents.querySelectorAll("a")].map((link) => [link.getAttribute("href").slice(1), link]));
const headings = [...links.keys()].map((id) => document.getElementById(id));
function showPlace() {
  const above = headings.filter((heading) => heading.getBoundingClientRect().top < 120);
  const here = links.get((above.at(-1) || headings[0] || {}).id);
  for (const link of links.values()) if (link !== here) link.removeAttribute("aria-current");
  if (here && !here.hasAttribute("aria-current")) {
    here.setAttribute("aria-current", "true");
    if (roomy.matches) here.scrollIntoView({ block: "nearest" });
  }
}
let waiting = false;
addEventListener("scroll", () => {
  if (!waiting) requestAnimationFrame(() => { waiting = false; showPlace(); });
  waiting = true;
}, { passive: true });
showPlace();
