const data = JSON.parse(document.querySelector("#board").textContent);
const names = Object.keys(data);
const tables = [...document.querySelectorAll("table.results")];
const SUMMARIES = 3;

const mean = values =>
  values.length && values.every(x => x !== null)
    ? values.reduce((a, b) => a + b, 0) / values.length
    : null;
const shown = (value, digits = 3) => (value === null ? "–" : value.toPrecision(digits));
const rowName = row => row.cells[0].textContent.trim();
const logistic = x => (x === null ? null : 1 / (1 + Math.exp(-x)));

function visiblePlaces(column) {
  const off = [...document.querySelectorAll("input.place:not(:checked)")];
  return column.places.map(place => !off.some(box => place[box.dataset.role] === box.value));
}

function update() {
  const words = document.querySelector("#filter").value.toLowerCase().split(/\s+/);
  names.forEach((name, at) => {
    const column = data[name], visible = visiblePlaces(column);
    for (const row of tables[at].rows)
      visible.forEach((on, i) => { row.cells[SUMMARIES + i].hidden = !on; });
    for (const row of tables[at].tBodies[0].rows) {
      const values = column.rows[rowName(row)].filter((_, i) => visible[i]);
      row.cells[1].innerText = shown(mean(values));
      row.cells[2].innerText = shown(mean(values.map(logistic)));
      row.hidden = !words.every(word => rowName(row).toLowerCase().includes(word));
    }
  });
  compare();
}

function sortable(table, column) {
  [...table.tHead.rows[0].cells].forEach((head, i) => {
    let up = column.better === "up";
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "descending" : "ascending");
      const visible = visiblePlaces(column);
      const number = row => {
        const every = column.rows[rowName(row)];
        if (i >= SUMMARIES) return every[i - SUMMARIES] ?? NaN;
        const values = every.filter((_, k) => visible[k]);
        return mean(i === 1 ? values : values.map(logistic)) ?? NaN;
      };
      const sorted = [...table.tBodies[0].rows].sort((a, b) => {
        if (i === 0) return rowName(a).localeCompare(rowName(b)) * (up ? -1 : 1);
        const [x, y] = [number(a), number(b)];
        return isNaN(x) - isNaN(y) || (up ? y - x : x - y) || 0;
      });
      table.tBodies[0].append(...sorted);
      up = !up;
    });
  });
}

// On a server two rows have a page of their own.
const pickers = ["#first", "#second"].map(id => document.querySelector(id)).filter(Boolean);

function compare() {
  if (!pickers.length) return;
  const [first, second] = pickers.map(select => select.value);
  const out = document.querySelector("#difference");
  out.replaceChildren();
  if (!first || !second || first === second) return;
  const list = document.createElement("ul");
  names.forEach(name => {
    const column = data[name], visible = visiblePlaces(column);
    column.pairs.forEach((pairs, i) => {
      const isBoth = p => p.includes(first) && p.includes(second);
      const found = visible[i] && pairs.find(p => isBoth(p.slice(0, 2)));
      if (!found) return;
      const sign = found[0] === first ? 1 : -1;
      const [value, low, high] = found.slice(2, 5).map(x => (x === null ? null : sign * x));
      const [from, to] = sign === 1 ? [low, high] : [high, low];
      const resolved = found[5];
      const item = document.createElement("li");
      item.innerText = `${name}, ${column.places[i].title}: ${shown(value)}` +
        ` [${shown(from)}, ${shown(to)}]` +
        (resolved ? "" : from === null ? " (undefined)" : " (not resolved)");
      list.append(item);
    });
  });
  const head = document.createElement("p");
  head.innerText = list.children.length
    ? `${first} less ${second}, over the same examples:`
    : `${first} and ${second} have no paired difference in what is shown.`;
  out.append(head, list);
}

names.forEach((name, i) => sortable(tables[i], data[name]));
const rows = [...new Set(names.flatMap(name => Object.keys(data[name].rows)))];
for (const select of pickers) {
  select.append(new Option("", ""), ...rows.map(row => new Option(row, row)));
  select.addEventListener("change", compare);
}
document.querySelector("#filter").addEventListener("input", update);
for (const box of document.querySelectorAll("input.place")) box.addEventListener("change", update);
update();
