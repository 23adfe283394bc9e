"use strict";
// The page is complete without this: a table that sorts, a browser of all answers, details that open for printing
// and for a link to something in them.

for (const table of document.querySelectorAll("table[data-sortable]")) {
  const body = table.tBodies[0];
  const measured = [...body.rows];
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  const value = (row, column) => row.cells[column].dataset.value;
  const compare = (one, other) => (isNaN(one) || isNaN(other) ? one.localeCompare(other) : one - other);
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      // up, down, as measured; what was not measured stays last
      const next = { ascending: "descending", descending: null }[head.getAttribute("aria-sort")];
      const order = next === undefined ? "ascending" : next;
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      if (order) head.setAttribute("aria-sort", order);
      const sign = order === "descending" ? -1 : 1;
      const sorted = order ? measured.toSorted((a, b) => {
        const [one, other] = [value(a, column), value(b, column)];
        return (one === "") - (other === "") || sign * compare(one, other);
      }) : measured;
      body.append(...sorted);
    });
  });
}

const part = (id) => document.getElementById("browser-" + id);
const element = (tag, options, ...inside) => {
  const made = document.createElement(tag);
  Object.entries(options).forEach(([name, value]) => made.setAttribute(name, value));
  made.append(...inside);
  return made;
};

// words of `text` that are not in the longest common subsequence with `other`, as <mark>; texts too long to compare stay plain
function marked(text, other) {
  const words = (all) => all.match(/\s*(?:\p{L}+|\p{N}+|\S)|\s+/gu) || [];
  const [ours, theirs] = [words(text), words(other)];
  if (text === other || ours.length * theirs.length > 2e6) return [text];
  const width = theirs.length + 1;
  const common = new Uint16Array((ours.length + 1) * width);
  for (let i = ours.length - 1; i >= 0; i--)
    for (let j = theirs.length - 1; j >= 0; j--)
      common[i * width + j] = ours[i] === theirs[j]
        ? common[(i + 1) * width + j + 1] + 1
        : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
  const found = [];
  for (let i = 0, j = 0; i < ours.length; ) {
    if (j < theirs.length && ours[i] === theirs[j]) { found.push(ours[i++]); j++; }
    else if (j < theirs.length && common[i * width + j + 1] >= common[(i + 1) * width + j]) j++;
    else found.push(element("mark", {}, ours[i++]));
  }
  return found;
}

const box = (label, kind, inside, ...more) => element("div", { class: "answer " + kind },
  element("h4", {}, label, element("span", {}, ...more)),
  element("pre", { tabindex: "0", dir: "auto", "aria-label": label }, ...inside));

function browse({ models, rows }) {
  let place = 0;
  const chosen = () => [part("first").value, part("second").value].filter(Boolean).map((model) => models.indexOf(model));
  const differ = (one, other) => (one[1] !== null && other[1] !== null ? one[1] !== other[1] : one[0] !== other[0]);
  const apart = (row, pair) => (pair.length === 2 ? differ(row.answers[pair[0]], row.answers[pair[1]]) : row.apart);
  const shown = () => rows.filter((row) =>
    (part("which").value === "all" || apart(row, chosen())) && (!part("domain").value || row.domain === part("domain").value));

  function card(row, number, against) {
    const [text, score, stopped, refused] = row.answers[number];
    const marks = [];
    if (score !== null) marks.push(element("span", score === 1 ? { class: "pass" } : {}, (score === 1 ? "✓ " : "") + (score * 100).toFixed(1)));
    if (stopped === false) marks.push(" · did not stop");
    if (refused === true) marks.push(" · refused");
    return box(models[number], "", against === null ? [text] : marked(text, against), ...marks);
  }

  function show(step = 0) {
    const found = shown();
    place = Math.min(Math.max(place + step, 0), Math.max(found.length - 1, 0));
    part("back").disabled = place === 0;
    part("next").disabled = place >= found.length - 1;
    const row = found[place];
    part("status").textContent = row
      ? `Row ${place + 1} of ${found.length}: ${row.id}${row.domain ? " · " + row.domain : ""}`
      : "No row is like this: choose other rows, domains or models.";
    if (!row) return part("row").replaceChildren();
    const pair = chosen();
    const numbers = pair.length ? pair : models.map((_, number) => number);
    const first = pair.length === 2 ? row.answers[pair[0]][0] : null;
    const cards = numbers.map((number, at) => card(row, number, first === null ? row.reference : at ? first : null));
    part("row").replaceChildren(
      element("pre", { class: "prompt", tabindex: "0", dir: "auto", "aria-label": "Prompt" }, row.prompt),
      element("div", { class: "answers" }, box("Reference", "reference", [row.reference]), ...cards));
  }

  for (const name of ["which", "domain", "first", "second"]) part(name).addEventListener("change", () => { place = 0; show(); });
  part("back").addEventListener("click", () => show(-1));
  part("next").addEventListener("click", () => show(1));
  part("row").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: rows.length }[event.key];
    if (step === undefined || (event.target !== part("row") && event.key.length < 5)) return;
    event.preventDefault();
    show(step);
  });
  document.getElementById("browser").hidden = false;
  document.documentElement.classList.add("browses");
  show();
}

if (part("data")) browse(JSON.parse(part("data").textContent));

const closed = () => document.querySelectorAll("details:not([open])");
let opened = [];
addEventListener("beforeprint", () => { opened = [...closed()]; opened.forEach((one) => { one.open = true; }); });
addEventListener("afterprint", () => opened.forEach((one) => { one.open = false; }));

// A link to a place unfolds what it is in. Without JavaScript the browser does so, or the style for a heading.
function unfold() {
  const place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!place) return;
  for (let one = place.closest("details"); one; one = one.parentElement.closest("details")) one.open = true;
  place.scrollIntoView();
}
addEventListener("hashchange", unfold);
// The same link again is no change of the hash.
addEventListener("click", (event) => { const link = event.target.closest?.("a[href^='#']"); if (link && link.hash === location.hash) unfold(); });
if (location.hash) unfold();
