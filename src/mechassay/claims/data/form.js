"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const by = id => document.getElementById(id);
const codes = data.codes, stored = "mechassay-form-" + data.key;
const nothing = () => Object.fromEntries(
  codes.map(code => [code, {status: "NOT TESTED", reason: "", evidence: []}]));
const judged = claim => ({claim, criteria: nothing(), touched: []});
const say = text => { by("said").textContent = text; };

let state = {rater: "", current: 0, claims: data.claims.map(judged)};
const current = () => state.claims[state.current];

// A quote is found if it is there but for white space, ligatures and hyphens at the ends of lines.
const plain = text => text.normalize("NFKC").replace(/-\s*\n\s*|\u00ad|\ufffe/g, "")
  .replace(/-/g, "").replace(/\s+/g, " ").trim();
const places = data.documents.flatMap(document => document.pages.map((text, n) => (
  {sha256: document.sha256, page: n + 1, text: plain(text)})));
const passages = data.documents.flatMap(document => document.pages.flatMap((text, n) =>
  text.replace(/-\s*\n\s*/g, "-").replace(/\s+/g, " ").trim()
    .split(/(?<=[.!?])\s+(?=[A-Z(\[“"])/).filter(words => words.length > 3)
    .map(words => ({sha256: document.sha256, page: n + 1, words}))));

function save() {
  try {
    localStorage.setItem(stored, JSON.stringify(state));
    say("Saved in this browser.");
  } catch (error) {
    say("This browser keeps nothing: download before you leave.");
  }
}

function counted() {
  const n = current().touched.length;
  by("progress").value = n;
  by("count").textContent = n + " of " + codes.length + " judged";
}

function show(code) {
  const judgment = current().criteria[code], touched = current().touched.includes(code);
  for (const input of document.querySelectorAll(`input[name="${code}"]`))
    input.checked = touched && input.value === judgment.status;
  const reason = by(code + "-reason");
  if (reason.value !== judgment.reason) reason.value = judgment.reason;
  by(code).classList.toggle("done", touched);
  by(code + "-need").hidden = !["YES", "PARTIAL"].includes(judgment.status)
    || judgment.evidence.length > 0;
  by(code + "-quotes").replaceChildren(...judgment.evidence.map((evidence, n) => {
    const item = document.createElement("li"), text = document.createElement("span");
    const quote = evidence.quote, remove = document.createElement("button");
    text.textContent = quote
      ? "“" + quote.exact + "”" + (quote.page ? ", page " + quote.page : "")
      : evidence.record ? "Record " + evidence.record.file : "The claim's " + evidence.declared;
    remove.type = "button";
    remove.textContent = "Remove";
    remove.setAttribute("aria-label", "Remove evidence " + (n + 1) + " of " + code);
    remove.addEventListener("click", () => {
      judgment.evidence.splice(n, 1);
      show(code);
      save();
      document.querySelector(`[data-quote="${code}"]`).focus();
    });
    item.append(text, remove);
    return item;
  }));
}

function showAll() {
  by("rater").value = state.rater;
  by("claim").replaceChildren(...state.claims.map(({claim}, n) => {
    const option = document.createElement("option");
    option.value = n;
    option.textContent = claim.id + ": " + claim.statement;
    return option;
  }));
  by("claim").value = state.current;
  const claim = current().claim;
  by("statement").textContent = claim.statement;
  const facts = [
    ["model", claim.model], ["task", claim.task], ["circuit", claim.circuit],
    ["components", (claim.components || []).join(", ")],
    ["description mode", claim.description_mode],
  ].filter(([, value]) => value);
  by("facts").replaceChildren(...facts.flatMap(([name, value]) => {
    const term = document.createElement("dt"), told = document.createElement("dd");
    term.textContent = name;
    told.textContent = value;
    return [term, told];
  }));
  codes.forEach(show);
  counted();
}

function addQuote(exact, place) {
  const code = by("for").value, quote = {exact: exact.trim()};
  if (!quote.exact) { say("There are no words to quote."); return; }
  if (place) { quote.document = place.sha256; quote.page = place.page; }
  current().criteria[code].evidence.push({quote});
  show(code);
  save();
  say("Added to " + code + (place || !places.length ? "." : ", but not found in the document."));
  const status = document.querySelector(`input[name="${code}"]:checked`)
    || document.querySelector(`input[name="${code}"]`);
  status.focus();
}

function placeOf(exact) {
  const words = plain(exact);
  return words ? places.find(place => place.text.includes(words)) : undefined;
}

function find() {
  const words = by("find").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = words.length === 0 ? [] : passages.filter(
    passage => words.every(word => passage.words.toLowerCase().includes(word)));
  by("hits").replaceChildren(...found.slice(0, 20).map(passage => {
    const item = document.createElement("li"), button = document.createElement("button");
    button.type = "button";
    button.textContent = "p. " + passage.page + ": " + passage.words;
    button.addEventListener("click", () => addQuote(passage.words, passage));
    item.append(button);
    return item;
  }));
  if (words.length) say(found.length + " passages" + (found.length > 20 ? ", 20 shown." : "."));
}

function download() {
  const name = by("rater").value.trim();
  if (!name) {
    say("Write your name first.");
    by("rater").focus();
    return;
  }
  const made = {
    format: 1, rubric: data.rubric, rater: {kind: "human", id: name}, scope: "claim",
    created: new Date().toISOString().slice(0, 19) + "+00:00",
    documents: data.documents.map(({sha256, name, title, n_pages}) => (
      {sha256, name, title, n_pages})),
    claims: state.claims.map(({claim, criteria}) => ({claim, criteria})),
  };
  const link = document.createElement("a");
  link.href = URL.createObjectURL(
    new Blob([JSON.stringify(made, null, 1) + "\n"], {type: "application/json"}));
  link.download = "judgments.json";
  link.click();
  URL.revokeObjectURL(link.href);
  say("judgments.json was downloaded.");
}

function take(found) {
  if (found.rubric !== data.rubric) throw new Error("it has the rubric " + found.rubric);
  state = {rater: found.rater.id, current: 0, claims: found.claims.map(({claim, criteria}) => ({
    claim, criteria: {...nothing(), ...criteria},
    touched: codes.filter(code => criteria[code] && (
      criteria[code].status !== "NOT TESTED")),
  }))};
}

document.addEventListener("change", event => {
  const input = event.target;
  if (input.type === "radio" && codes.includes(input.name)) {
    const own = current();
    own.criteria[input.name].status = input.value;
    if (!own.touched.includes(input.name)) own.touched.push(input.name);
    show(input.name);
    counted();
    save();
  }
});
document.addEventListener("input", event => {
  const code = event.target.dataset.reason;
  if (code) {
    current().criteria[code].reason = event.target.value;
    save();
  }
});
document.querySelectorAll("[data-quote]").forEach(button => button.addEventListener("click", () => {
  by("for").value = button.dataset.quote;
  (places.length ? by("find") : by("paste")).focus();
  say("Quote for " + button.dataset.quote + ".");
}));
by("rater").addEventListener("input", () => { state.rater = by("rater").value; save(); });
by("claim").addEventListener("change", () => {
  state.current = Number(by("claim").value);
  showAll();
  save();
});
by("add").addEventListener("click", () => {
  const id = by("new-id").value.trim(), statement = by("new-statement").value.trim();
  if (!id || !statement) { say("A claim has a short name and a statement."); return; }
  if (state.claims.some(({claim}) => claim.id === id)) {
    say("A claim is called " + id + " already.");
    return;
  }
  const components = by("new-components").value.split(",").map(text => text.trim()).filter(Boolean);
  const system = by("new-system").checked;
  // The claim that a document without claims begins with goes.
  const isDraft = claim => claim.id === "claim" && data.drafted;
  state.claims = state.claims.filter(({claim, touched}) => touched.length || !isDraft(claim));
  for (const {claim} of state.claims) if (system) claim.system = false;
  state.claims.push(judged({id, statement, components, system}));
  state.current = state.claims.length - 1;
  for (const name of ["new-id", "new-statement", "new-components"]) by(name).value = "";
  by("new-system").checked = false;
  showAll();
  save();
  say("Added: " + id + ".");
});
by("find").addEventListener("input", find);
by("use").addEventListener("click", () => {
  const words = by("paste").value;
  addQuote(words, placeOf(words));
  by("paste").value = "";
});
document.addEventListener("selectionchange", () => {
  const chosen = getSelection(), page = chosen.anchorNode?.parentElement?.closest("[data-page]");
  by("selection").disabled = chosen.isCollapsed || !page;
});
by("selection").addEventListener("click", () => {
  const chosen = getSelection(), page = chosen.anchorNode.parentElement.closest("[data-page]");
  addQuote(chosen.toString(), {sha256: page.dataset.document, page: Number(page.dataset.page)});
});
by("download").addEventListener("click", download);
by("load").addEventListener("change", async event => {
  try {
    take(JSON.parse(await event.target.files[0].text()));
    showAll();
    save();
    say("Loaded.");
  } catch (error) {
    say("This file was not loaded: " + error.message + ".");
  }
  event.target.value = "";
});

by("about-document").textContent = places.length
  ? data.documents.map(one => one.name + ": " + one.pages.length + " of " + one.n_pages
    + " pages").join("; ") + ". Open a page and select words, or find them above."
  : "There is no document here: write quotes word for word; they are looked for when judgments are"
    + " scored with the document.";
if (data.initial) take(data.initial);
try {
  const kept = JSON.parse(localStorage.getItem(stored));
  if (kept && kept.claims.length) { state = kept; say("Taken up from this browser."); }
} catch (error) {
  say("This browser keeps nothing: download before you leave.");
}
showAll();
