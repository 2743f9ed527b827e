// One entry a table, in the order of the page; tables without numbers stand behind them.
const data = JSON.parse(document.querySelector("#board").textContent);
const tables = [...document.querySelectorAll("table.results")].slice(0, data.length);
const SUMMARIES = 3;

const mean = values =>
  values.length && values.every(x => x !== null)
    ? values.reduce((a, b) => a + b, 0) / values.length
    : null;
const shown = (value, digits = 3) => (value === null ? "–" : value.toPrecision(digits));
const rowName = row => row.querySelector(".row-name").textContent;
const isControl = row => row.classList.contains("control");
const logistic = x => (x === null ? null : 1 / (1 + Math.exp(-x)));

// As text.py rounds a number: to what its interval supports.
function decimals(low, high) {
  const half = low === null || high === null ? 0 : (high - low) / 2;
  if (!(half > 0) || !isFinite(half)) return 2;
  const power = Math.floor(Math.log10(half));
  const digits = half / 10 ** power < 3.55 ? 2 : 1;
  return Math.min(Math.max(digits - 1 - power, 0), 3);
}
function fixed(value, digits) {
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text;
}

// As averages.py: half-widths of one task's places add up, those of two tasks by their squares.
function estimate(cells) {
  const value = mean(cells.map(cell => cell.value));
  const known = value !== null && cells.every(cell => cell.low !== null && cell.high !== null);
  if (!known) return { value, low: null, high: null };
  const side = half => {
    const sums = {};
    for (const cell of cells) sums[cell.task] = (sums[cell.task] ?? 0) + half(cell);
    return Math.hypot(...Object.values(sums)) / cells.length;
  };
  const below = side(cell => cell.value - cell.low), above = side(cell => cell.high - cell.value);
  return { value, low: value - below, high: value + above };
}
function scored(cell, sign) {
  const [value, one, other] = [cell.value, cell.low, cell.high]
    .map(x => (x === null ? null : logistic(sign * x)));
  const known = one !== null && other !== null;
  return { task: cell.task, value,
    low: known ? Math.min(one, other) : null, high: known ? Math.max(one, other) : null };
}
function summary(column, name, visible) {
  const values = column.rows[name] ?? column.controls[name], ends = column.ends[name] ?? [];
  const cells = values.flatMap((value, i) => {
    const [low = null, high = null] = ends[i] ?? [];
    return visible[i] ? [{ value, low, high, task: column.places[i]["examples of"] }] : [];
  });
  const sign = column.better === "down" ? -1 : 1;
  return [estimate(cells), estimate(cells.map(cell => scored(cell, sign))), lacking(cells)];
}
function lacking(cells) {
  if (!cells.length) return "no place is shown";
  const n = cells.filter(cell => cell.value === null).length;
  if (n) return `lacks ${n} of ${cells.length} places`;
  const m = cells.filter(cell => cell.low === null || cell.high === null).length;
  return m ? `no interval: ${m} of ${cells.length} numbers have none` : "";
}
function write(cell, { value, low, high }, reason) {
  const places = decimals(low, high), told = x => fixed(x, places);
  cell.replaceChildren(value === null ? "–" : told(value));
  const small = [low === null ? "" : `[${told(low)}, ${told(high)}]`, reason];
  small.forEach((text, i) => {
    if (!text) return;
    const span = document.createElement("span");
    span.className = i ? "interval note" : "interval";
    span.textContent = text;
    cell.append(" ", span);
  });
}

function visiblePlaces(column) {
  const off = [...document.querySelectorAll("input.place:not(:checked)")];
  return column.places.map(place => !off.some(box => place[box.dataset.role] === box.value));
}

function update() {
  const words = document.querySelector("#filter").value.toLowerCase().split(/\s+/);
  data.forEach((column, at) => {
    const visible = visiblePlaces(column), n = visible.filter(Boolean).length;
    for (const small of tables[at].querySelectorAll(".averaged"))
      small.textContent = `of ${n} ${n === 1 ? "place" : "places"}`;
    for (const row of tables[at].rows)
      visible.forEach((on, i) => { row.cells[SUMMARIES + i].hidden = !on; });
    for (const row of tables[at].tBodies[0].rows) {
      const [average, score, reason] = summary(column, rowName(row), visible);
      write(row.cells[1], average, isControl(row) ? "" : reason);
      write(row.cells[2], score, "");
      row.hidden = !isControl(row) &&
        !words.every(word => rowName(row).toLowerCase().includes(word));
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
      // A higher score is better in every column.
      const falling = i === 2 ? up === (column.better === "up") : up;
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const visible = visiblePlaces(column);
      const number = row => {
        if (i >= SUMMARIES) return column.rows[rowName(row)][i - SUMMARIES] ?? NaN;
        return summary(column, rowName(row), visible)[i - 1].value ?? NaN;
      };
      const rows = [...table.tBodies[0].rows];
      const sorted = rows.filter(row => !isControl(row)).sort((a, b) => {
        if (i === 0) return rowName(a).localeCompare(rowName(b)) * (up ? -1 : 1);
        const [x, y] = [number(a), number(b)];
        return isNaN(x) - isNaN(y) || (falling ? y - x : x - y) || 0;
      });
      table.tBodies[0].append(...sorted, ...rows.filter(isControl));
      up = !up;
    });
  });
}

const pickers = ["#first", "#second"].map(id => document.querySelector(id));

function compare() {
  const [first, second] = pickers.map(select => select.value);
  // What one side has, the other does not offer.
  pickers.forEach((select, i) => {
    for (const option of select.options)
      option.hidden = option.disabled = option.value !== "" && option.value === [second, first][i];
  });
  const out = document.querySelector("#difference");
  out.replaceChildren();
  if (!first || !second) return;
  const list = document.createElement("ul");
  for (const column of data) {
    const visible = visiblePlaces(column);
    column.pairs.forEach((pairs, i) => {
      const pair = visible[i] && pairs.find(p => p[0] === first && p[1] === second
        || p[0] === second && p[1] === first);
      if (!pair) return;
      const sign = pair[0] === first ? 1 : -1;
      const [value, low, high] = pair.slice(2, 5).map(x => (x === null ? null : sign * x));
      const [from, to] = sign === 1 ? [low, high] : [high, low];
      const better = (value > 0) === (column.better === "up") ? first : second;
      const verdict = from === null ? "undefined" : pair[5] ? `${better} is better`
        : "not resolved";
      const item = document.createElement("li");
      item.innerText = `${column.column}, ${column.places[i].title}: ${shown(value)}` +
        ` [${shown(from)}, ${shown(to)}] (${verdict})`;
      list.append(item);
    });
  }
  const head = document.createElement("p");
  head.innerText = list.children.length
    ? `${first} less ${second}, over the same examples:`
    : `${first} and ${second} have no paired difference in what is shown.`;
  out.append(head, list);
}

data.forEach((column, i) => sortable(tables[i], column));
const rows = [...new Set(data.flatMap(column => Object.keys(column.rows)))];
for (const select of pickers) {
  select.append(new Option("", ""), ...rows.map(row => new Option(row, row)));
  select.addEventListener("change", compare);
}
document.querySelector("#filter").addEventListener("input", update);
for (const box of document.querySelectorAll("input.place")) box.addEventListener("change", update);
update();
