"use strict";
// Asks for what is new of the run, and draws it. Texts of the run only ever become text nodes.
(() => {
  const PAUSE = 2000; // milliseconds between two questions
  const LONG_PAUSE = 10000; // and when nobody answers, or nothing trains
  const WIDTH = 640, HEIGHT = 240, LEFT = 74, BOTTOM = 26, TOP = 10;
  const SVG = "http://www.w3.org/2000/svg";
  const at = (name) => document.getElementById(`live-${name}`);
  const made = (tag, text = "", kind = "") => {
    const element = document.createElement(tag);
    element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };
  const drawn = (tag, values, text = "") => {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(values)) element.setAttribute(name, value);
    element.textContent = text;
    return element;
  };
  const known = { begun: -1, step: -1, evaluated: -1, page: undefined, said: "", evaluations: [] };
  const curves = new Map();
  const unanswered = at("answers").firstElementChild, unjudged = at("checks").textContent;

  const figures = (value, inBytes) => {
    if (inBytes) return value >= 1e9 ? `${(value / 1e9).toFixed(2)} GB` : `${(value / 1e6).toFixed(1)} MB`;
    const isPlain = value === 0 || (Math.abs(value) >= 0.001 && Math.abs(value) < 1e6);
    return isPlain ? String(Number(value.toPrecision(3))) : value.toExponential(1);
  };

  // The lowest and the highest value of each column of pixels, so that no spike is lost.
  const thinned = (points, first, across) => {
    if (points.length <= 2 * WIDTH) return points;
    const columns = new Map();
    for (const point of points) {
      const column = Math.floor(((point[0] - first) / across) * WIDTH);
      const seen = columns.get(column);
      if (!seen) columns.set(column, [point, point]);
      else {
        if (point[1] < seen[0][1]) seen[0] = point;
        if (point[1] > seen[1][1]) seen[1] = point;
      }
    }
    return [...columns.values()].flatMap(([low, high]) => (low === high ? [low] : low[0] < high[0] ? [low, high] : [high, low]));
  };

  const draw = (curve) => {
    const all = [...curve.trained, ...curve.heldOut];
    curve.svg.replaceChildren();
    if (!all.length) return;
    let first = Infinity, last = -Infinity, low = Infinity, high = -Infinity;
    for (const [step, value] of all) {
      first = Math.min(first, step); last = Math.max(last, step);
      low = Math.min(low, value); high = Math.max(high, value);
    }
    const across = Math.max(1, last - first), up = high - low;
    const x = (step) => (LEFT + ((step - first) / across) * (WIDTH - LEFT - 12)).toFixed(1);
    const y = (value) => (TOP + (up ? 1 - (value - low) / up : 0.5) * (HEIGHT - TOP - BOTTOM - 4)).toFixed(1);
    const title = `${curve.title}: ${curve.newest}`;
    curve.svg.append(
      drawn("title", { id: `live-title-${curve.number}` }, title),
      drawn("desc", { id: `live-desc-${curve.number}` }, `Steps ${first} to ${last}, values ${figures(low, curve.inBytes)} to ${figures(high, curve.inBytes)}.`),
      drawn("line", { x1: LEFT, x2: WIDTH - 12, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }),
      drawn("text", { x: LEFT - 8, y: TOP + 8, "text-anchor": "end" }, figures(high, curve.inBytes)),
      drawn("text", { x: LEFT - 8, y: HEIGHT - BOTTOM - 2, "text-anchor": "end" }, up ? figures(low, curve.inBytes) : ""),
      drawn("text", { x: LEFT, y: HEIGHT - 6 }, `step ${first}`),
      drawn("text", { x: WIDTH - 12, y: HEIGHT - 6, "text-anchor": "end" }, String(last)),
    );
    const line = (points, kind) => drawn("polyline", { class: kind, points: thinned(points, first, across).map(([step, value]) => `${x(step)},${y(value)}`).join(" ") });
    if (curve.trained.length) curve.svg.append(line(curve.trained, "trained"));
    if (curve.heldOut.length) {
      curve.svg.append(line(curve.heldOut, "held-out"));
      for (const [step, value] of curve.heldOut) curve.svg.append(drawn("circle", { cx: x(step), cy: y(value), r: 4 }));
    }
  };

  const curveOf = (found) => {
    let curve = curves.get(found.key);
    if (!curve) {
      const number = curves.size;
      const figure = document.createElement("figure");
      const caption = document.createElement("figcaption");
      const value = made("span");
      const svg = drawn("svg", { class: "plot", role: "img", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-labelledby": `live-title-${number} live-desc-${number}` });
      caption.append(made("strong", found.title), value);
      figure.append(caption, svg);
      at("plots").append(figure);
      curve = { number, svg, value, title: found.title, inBytes: found.key.endsWith("_bytes"), trained: [], heldOut: [], newest: "" };
      curves.set(found.key, curve);
    }
    return curve;
  };

  const answersOf = (evaluation) => {
    const article = document.createElement("article");
    article.append(made("h4", `Step ${evaluation.step}${evaluation.asked ? ", asked for" : ""}`));
    for (const sample of evaluation.samples) {
      const prompt = made("pre", sample.prompt, "prompt");
      const row = made("div", "", "answers");
      for (const [name, text, kind] of [["Reference", sample.reference, "answer reference"], ["Answer", sample.answer, "answer"]]) {
        const box = made("div", "", kind);
        box.append(made("h5", name), made("pre", text));
        row.append(box);
      }
      for (const block of [prompt, ...row.querySelectorAll("pre")]) block.tabIndex = 0;
      article.append(prompt, row);
    }
    return article;
  };

  const show = (news) => {
    if (news.begun !== known.begun) {
      at("plots").replaceChildren(); // Another run may have other curves.
      curves.clear();
      known.evaluations = [];
    }
    for (const found of news.curves) {
      const curve = curveOf(found);
      if (!found.trained.length && !found.held_out.length && news.begun === known.begun) continue;
      curve.trained.push(...found.trained);
      curve.heldOut.push(...found.held_out);
      curve.newest = found.newest;
      curve.value.textContent = found.newest;
      draw(curve);
    }
    const isNew = news.begun !== known.begun || news.evaluations.length;
    known.evaluations = [...known.evaluations, ...news.evaluations].slice(-3);
    Object.assign(known, { begun: news.begun, step: news.step, evaluated: news.evaluated });
    at("headline").textContent = news.headline;
    at("notes").replaceChildren(...[news.trouble, ...news.notes].filter(Boolean).map((note) => made("li", note)));
    at("checks").textContent = news.checks.length ? `${news.counts}.` : unjudged;
    const found = news.checks.filter((check) => check.verdict === "warn" || check.verdict === "fail");
    at("findings").replaceChildren(...found.map((check) => {
      const line = made("li");
      line.append(made("b", `${check.verdict}: ${check.name}${check.step === null ? "" : ` (step ${check.step})`}: `), `${check.found}${check.remedy ? ` → ${check.remedy}` : ""}`);
      return line;
    }));
    if (isNew) at("answers").replaceChildren(...(known.evaluations.length ? known.evaluations.toReversed().map(answersOf) : [unanswered]));
    at("log").textContent = news.log.join("\n");
    // A screen reader hears of evaluations and of the end, not of every step.
    const said = known.evaluations.length ? `${news.state}, evaluated at step ${news.evaluated}` : news.state;
    if (said !== known.said) at("status").textContent = said;
    known.said = said;
    if (known.page === undefined) known.page = news.page;
    at("report").hidden = news.page === known.page;
  };

  const ask = async () => {
    let pause = PAUSE;
    try {
      const answer = await fetch(`news.json?begun=${known.begun}&step=${known.step}&evaluated=${known.evaluated}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const news = await answer.json();
      show(news);
      at("time").textContent = "";
      if (news.state === "finished" || news.state === "stopped") pause = LONG_PAUSE;
    } catch {
      at("time").textContent = "the server of this page does not answer: it has ended, or is busy";
      pause = LONG_PAUSE;
    }
    setTimeout(ask, pause);
  };
  ask();
})();
