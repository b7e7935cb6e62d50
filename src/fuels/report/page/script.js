"use strict";
const root = document.documentElement;
root.classList.add("js");

const button = document.getElementById("theme");
const dark = () => root.dataset.theme
  ? root.dataset.theme === "dark"
  : matchMedia("(prefers-color-scheme: dark)").matches;
const name = () => { button.textContent = dark() ? "Light theme" : "Dark theme"; };
button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", name);
name();

// Numbers are compared by data-v; rows without a value come last in both directions.
function sort(table, place, down) {
  const key = row => {
    const cell = row.cells[place];
    return cell.classList.contains("n") ? parseFloat(cell.dataset.v) : cell.textContent;
  };
  const rows = Array.from(table.tBodies[0].rows, row => [key(row), row]);
  const empty = value => typeof value === "number" && isNaN(value);
  rows.sort(([a], [b]) => {
    if (empty(a) || empty(b)) return empty(a) - empty(b);
    const order = typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true });
    return down ? -order : order;
  });
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

for (const finder of document.querySelectorAll(".finder")) {
  const table = finder.querySelector("table");
  const heads = Array.from(table.tHead.rows[0].cells);
  heads.forEach((head, place) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of heads) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    sort(table, place, down);
  }));
  const input = finder.querySelector("input");
  const output = finder.querySelector("output");
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
      shown += !row.hidden;
    }
    output.textContent = shown === 1 ? "1 row" : `${shown.toLocaleString("en")} rows`;
  });
}
