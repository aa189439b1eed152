// The first view: a picture, its most likely classes, and what the models attend to.
import { Refused, ask, query } from "./api.js";
import { drawAtlas, matrixBytes, painted, seenFrom } from "./attention.js";
import { $, el, notice, percent } from "./dom.js";
import { distanceChart, rememberDistance } from "./distance.js";
import { askLocation, drawLocation, foundRows, locates, showLocateControls, summary } from "./locate.js";
import { SHOWN_SIDE, openPicture, seenRegion } from "./picture.js";

// Up to this size the matrices of all layers are requested at once; of a larger model, one layer when it is shown.
const AT_ONCE = 12e6;
const view = { mode: "heads", layer: 0, head: -1, strength: 0.75, patch: null, pinned: null };
let stages = [];
let picture = null;
let current = null; // aborts the requests of an earlier picture

export function startLook(models) {
  stages = models.map(makeStage);
  $("#glasses").replaceChildren(...stages.map((stage) => stage.glass));
  $("#sides").replaceChildren(...stages.map((stage) => stage.side));
  $("#case").classList.toggle("two", stages.length > 1);
  const attentive = models.filter((model) => model.num_layers);
  showLocateControls(models, () => stages.forEach(showFound));
  const depth = Math.max(1, ...attentive.map((model) => model.num_layers));
  const heads = Math.max(1, ...attentive.map((model) => model.num_heads));
  Object.assign($("#layer"), { max: depth, value: depth });
  Object.assign($("#head"), { max: heads, value: 0 });
  view.layer = depth - 1;
  listenToControls();
  showControls();
  if (picture) show(picture.blob); // a model was added
}

let isListening = false;

function listenToControls() {
  if (isListening) return;
  isListening = true;
  $("#layer").addEventListener("input", (event) => change({ layer: event.target.value - 1 }));
  $("#head").addEventListener("input", (event) => change({ head: event.target.value - 1 }));
  $("#strength").addEventListener("input", (event) => change({ strength: event.target.value / 100 }));
  $("#mode").addEventListener("change", (event) => change({ mode: event.target.value }));
  $("#clear").addEventListener("click", clear);
}

function makeStage(model) {
  const canvas = el("canvas", { tabIndex: 0, className: "look", role: "application" });
  canvas.setAttribute("aria-label", "Picture; arrow keys select a patch, Escape releases it");
  const glass = el("div", { className: "glass" }, canvas);
  glass.dataset.name = model.title;
  const bars = el("ol", { className: "bars" });
  const facts = el("span", { className: "soft fine" });
  const mark = el("p", { className: "mark", role: "status", hidden: true });
  const atlas = el("canvas", { className: "atlas", tabIndex: 0, role: "application" });
  const atlasBox = el("div", { className: "atlas-box panel", hidden: true },
    el("h3", {}, "All heads by layer", el("span", { className: "soft" }, "select one")), atlas);
  const distance = el("div", { className: "panel", hidden: true });
  const side = el("article", { className: "side", "aria-label": model.title },
    el("div", { className: "panel" }, el("div", { className: "who" }, el("h2", {}, model.title), facts), mark, bars),
    atlasBox, distance);
  const stage = { model, canvas, glass, side, bars, facts, mark, atlas, atlasBox, distance, explained: null };
  listen(stage);
  return stage;
}

function listen(stage) {
  const { canvas } = stage;
  const at = (event) => patchAt(stage, event);
  canvas.addEventListener("pointermove", (event) => { if (view.pinned === null) change({ patch: at(event) }); });
  canvas.addEventListener("pointerleave", () => { if (view.pinned === null) change({ patch: null }); });
  canvas.addEventListener("click", (event) => {
    const patch = at(event);
    const isSame = patch === null || patch === view.pinned;
    change({ pinned: isSame ? null : patch, patch: isSame ? null : patch });
  });
  canvas.addEventListener("keydown", (event) => {
    if (!stage.explained) return;
    const [rows, columns] = stage.explained.grid;
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Escape") change({ patch: null, pinned: null });
    if (!step) return;
    event.preventDefault();
    const from = view.patch ?? Math.floor(rows / 2) * columns + Math.floor(columns / 2);
    const row = Math.min(Math.max(Math.floor(from / columns) + (view.patch === null ? 0 : step[0]), 0), rows - 1);
    const column = Math.min(Math.max((from % columns) + (view.patch === null ? 0 : step[1]), 0), columns - 1);
    change({ patch: row * columns + column, pinned: row * columns + column });
  });
  stage.atlas.addEventListener("click", (event) => {
    const box = stage.atlas.getBoundingClientRect();
    const layer = Math.floor(((event.clientX - box.left) / box.width) * stage.explained.num_layers);
    const head = Math.floor(((event.clientY - box.top) / box.height) * stage.explained.num_heads);
    change({ layer, head, mode: "heads" });
  });
  stage.atlas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step || !stage.explained) return;
    event.preventDefault();
    const within = (value, low, count) => Math.min(Math.max(value, low), count - 1);
    const layer = within(view.layer + step[0], 0, stage.explained.num_layers);
    change({ layer, head: within(view.head + step[1], -1, stage.explained.num_heads), mode: "heads" });
  });
}

function patchAt(stage, event) {
  if (!stage.explained) return null;
  const box = stage.canvas.getBoundingClientRect();
  const region = seenRegion(stage.model, picture);
  const [rows, columns] = stage.explained.grid;
  const row = Math.floor((((event.clientY - box.top) / box.height - region.top) / region.height) * rows);
  const column = Math.floor((((event.clientX - box.left) / box.width - region.left) / region.width) * columns);
  return row < 0 || column < 0 || row >= rows || column >= columns ? null : row * columns + column;
}

function change(values) {
  Object.assign(view, values);
  if (view.patch !== null && view.mode !== "heads") view.mode = "heads";
  showControls();
  for (const stage of stages) draw(stage);
}

function showControls() {
  $(`#mode input[value="${view.mode}"]`).checked = true;
  $("#layer").value = view.layer + 1;
  $("#head").value = view.head + 1;
  $("#layer-value").textContent = `${view.layer + 1} of ${$("#layer").max}`;
  $("#head-value").textContent = view.head < 0 ? "mean" : `${view.head + 1} of ${$("#head").max}`;
  $("#strength-value").textContent = `${Math.round(view.strength * 100)} %`;
  const hasLayers = stages.some((stage) => stage.model.num_layers);
  for (const id of ["#layer-control", "#head-control"]) $(id).hidden = !hasLayers || view.mode !== "heads";
}

export async function show(blob) {
  current?.abort();
  const { signal } = (current = new AbortController());
  notice(null);
  $("#hint").textContent = "";
  const opened = await openPicture(blob);
  if (signal.aborted) return; // a newer picture came first
  picture = opened;
  Object.assign(view, { patch: null, pinned: null });
  $("#hero").hidden = true;
  $("#case").hidden = false;
  await Promise.all(stages.map((stage) => askAbout(stage, signal)));
}

function clear() {
  current?.abort();
  picture = null;
  $("#hint").textContent = "";
  $("#hero").hidden = false;
  $("#case").hidden = true;
}

async function askAbout(stage, signal) {
  const { model, glass } = stage;
  Object.assign(stage, { explained: null, located: null });
  stage.bars.replaceChildren();
  stage.facts.textContent = "";
  stage.mark.hidden = true;
  stage.atlasBox.hidden = stage.distance.hidden = true;
  const factor = SHOWN_SIDE / Math.max(picture.width, picture.height);
  stage.canvas.width = Math.round(picture.width * factor);
  stage.canvas.height = Math.round(picture.height * factor);
  draw(stage);
  glass.classList.add("busy");
  const matrix = model.num_layers && matrixBytes(model) <= AT_ONCE;
  try {
    if (locates(model)) {
      stage.located = await askLocation(model, picture, signal);
      stage.facts.textContent = `${stage.located.milliseconds.toFixed(0)} ms, ${stage.located.picture.join(" × ")} px`;
      showFound(stage);
      return;
    }
    const predicted = model.classes
      ? ask(query("/predict", { model: model.name, top: 5 }), { picture: picture.blob, signal }).then((answer) => showBars(stage, answer))
      : showBars(stage, null);
    const explained = model.num_layers
      ? ask(query("/explain", { model: model.name, layers: "all", matrix }), { picture: picture.blob, signal }).then((answer) => showAttention(stage, answer))
      : null;
    await Promise.all([predicted, explained]);
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof Refused)) {
      notice(`Something went wrong in this page: ${error.message}`);
      throw error;
    }
    if (!picture?.bitmap) clear(); // neither the browser nor the server can read it
    notice(error.message);
  } finally {
    if (!signal.aborted) glass.classList.remove("busy");
  }
}

function showFound(stage) {
  if (!stage.located) return;
  stage.bars.replaceChildren(...foundRows(stage.located));
  $("#hint").textContent = summary(stage.located);
  draw(stage);
}

function showBars(stage, answer) {
  if (!answer) {
    stage.bars.replaceChildren(el("li", {}, el("span", { className: "soft" }, "This model has no classification head. Add classes under Teach.")));
    return;
  }
  const applying = answer.labels ? `${answer.labels.join(", ") || "no label"} (at least 50 %); ` : "";
  stage.facts.textContent = `${applying}${answer.milliseconds.toFixed(0)} ms at ${answer.size.join(" × ")} px`;
  stage.mark.hidden = !answer.none_of_these;
  stage.mark.replaceChildren(el("strong", {}, "None of these?"),
    ` This picture is unlike the training images. About 1 in ${Math.round(1 / stage.model.false_alarms)} pictures of the classes is, too.`);
  if (answer.number != null) {
    const [low, high] = (answer.interval ?? []).map(shortNumber);
    const range = answer.interval ? ` (${low} to ${high})` : "";
    stage.bars.replaceChildren(el("li", {}, el("span", { className: "label" }, stage.model.number),
      el("span", { className: "value" }, shortNumber(answer.number) + range)));
    return;
  }
  stage.bars.replaceChildren(...answer.answers.map(({ label, probability }) => bar(label, percent(probability), probability)));
}

function shortNumber(value) {
  return Number(value.toPrecision(4)).toLocaleString("en");
}

export function bar(label, text, share) {
  const fill = el("span", { className: "fill" });
  fill.style.transform = "scaleX(0)";
  requestAnimationFrame(() => requestAnimationFrame(() => { fill.style.transform = `scaleX(${Math.min(Math.max(share, 0), 1)})`; }));
  return el("li", {}, el("span", { className: "label" }, label), el("span", { className: "value" }, text),
    el("span", { className: "track" }, fill));
}

function showAttention(stage, explained) {
  stage.explained = explained;
  rememberDistance(stage.model.name, explained.distance);
  stage.atlasBox.hidden = stage.distance.hidden = false;
  stage.distance.replaceChildren(el("h3", {}, "Attention distance in this picture"), distanceChart(explained.distance, stage.model));
  draw(stage);
}

function draw(stage) {
  const { canvas, explained } = stage;
  if (!picture) return;
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.fillStyle = "#26232a";
  context.fillRect(0, 0, canvas.width, canvas.height);
  if (picture.bitmap) context.drawImage(picture.bitmap, 0, 0, canvas.width, canvas.height);
  if (stage.located) drawLocation(canvas, stage.located, view.strength);
  if (!explained) return;
  const layer = Math.min(view.layer, explained.num_layers - 1);
  const head = Math.min(view.head, explained.num_heads - 1);
  drawAtlas(stage.atlas, explained, { layer, head, mark: "#38d0ff" });
  const selected = head < 0 ? "mean of all heads" : `head ${head + 1}`;
  stage.atlas.setAttribute("aria-label", `All heads by layer; arrow keys select one. Layer ${layer + 1}, ${selected}`);
  if (view.mode === "off") {
    showHint(stage, null);
    return;
  }
  const cells = explained.grid[0] * explained.grid[1];
  const shown = explained.layers[layer];
  const patch = view.mode === "heads" && view.patch !== null && view.patch < cells ? view.patch : null;
  if (patch !== null && !shown.matrix) {
    fetchMatrix(stage, layer);
    return;
  }
  const map = view.mode === "rollout" ? Float32Array.from(explained.rollout.flat()) : seenFrom(shown, { head, patch, cells });
  cover(stage, map, patch);
  showHint(stage, { map, patch });
}

function cover({ canvas, model, explained }, map, patch) {
  const context = canvas.getContext("2d");
  const region = seenRegion(model, picture);
  const [rows, columns] = explained.grid;
  const [left, top] = [Math.round(region.left * canvas.width), Math.round(region.top * canvas.height)];
  const [width, height] = [Math.round(region.width * canvas.width), Math.round(region.height * canvas.height)];
  context.fillStyle = `rgb(10 8 20 / ${0.75 * view.strength})`;
  const outside = new Path2D();
  outside.rect(0, 0, canvas.width, canvas.height);
  outside.rect(left, top, width, height);
  context.fill(outside, "evenodd");
  context.drawImage(painted(map, explained.grid, view.strength), left, top, width, height);
  if (patch === null) return;
  const [cellWidth, cellHeight] = [width / columns, height / rows];
  context.lineWidth = Math.max(2, canvas.width / 300);
  for (const [style, grow] of [["#000000aa", 1.5], ["#ffffff", 0]]) {
    context.strokeStyle = style;
    context.strokeRect(left + (patch % columns) * cellWidth - grow, top + Math.floor(patch / columns) * cellHeight - grow,
      cellWidth + 2 * grow, cellHeight + 2 * grow);
  }
}

// The matrix of one layer of a large model, requested when it is first needed.
async function fetchMatrix(stage, layer) {
  const { explained } = stage;
  if (explained.layers[layer].asked) return;
  explained.layers[layer].asked = true;
  try {
    const answer = await ask(query("/explain", { model: stage.model.name, layers: layer, matrix: true }), { picture: picture.blob, signal: current.signal });
    explained.layers[layer].matrix = answer.layers[0].matrix;
    draw(stage);
  } catch (error) {
    explained.layers[layer].asked = false;
    if (error.name !== "AbortError") notice(error.message);
  }
}

function showHint(stage, seen) {
  if (stage !== stages.find((each) => each.explained)) return;
  const hint = $("#hint");
  if (!seen) {
    hint.textContent = "";
    return;
  }
  const columns = stage.explained.grid[1];
  const place = (cell) => `row ${Math.floor(cell / columns) + 1}, column ${(cell % columns) + 1}`;
  const best = seen.map.indexOf(Math.max(...seen.map));
  if (seen.patch !== null) {
    hint.textContent = `The patch in ${place(seen.patch)} attends most to ${place(best)} (${percent(seen.map[best])})${view.pinned === null ? "; click to keep it selected" : "; press Escape to release it"}.`;
  } else if (view.mode === "rollout") {
    hint.textContent = "Attention rollout: brighter patches have more influence on the output through all layers.";
  } else {
    const from = stage.explained.seen_from === "class token" ? "The class token" : "The mean over all patches";
    hint.textContent = `${from} attends most to ${place(best)}. Point at a patch, or use the arrow keys on the picture, to see what it attends to.`;
  }
}
