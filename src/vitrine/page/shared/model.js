// The figures of a model that need no picture, and attention distances over all pictures shown.
import { ask, query } from "./api.js";
import { bytesOf, colour } from "./attention.js";
import { $, el } from "./dom.js";
import { distanceChart, meanDistance } from "./distance.js";

const GAP = 1;
let cards = [];

export function startModel(models) {
  cards = models.map((model) => ({ model, root: el("article", { className: "card" }), isDrawn: false }));
  $("#model-cards").replaceChildren(...cards.map((card) => card.root));
  $("#model-cards").classList.toggle("one", cards.length === 1);
}

export async function showModels() {
  for (const card of cards) {
    if (!card.isDrawn) await drawCard(card);
    const mean = meanDistance(card.model.name);
    card.distance?.replaceChildren(el("h3", {}, "Attention distance"), mean
      ? el("div", {}, distanceChart(mean.distance, card.model), el("p", { className: "caption" }, `Mean over ${mean.count} picture${mean.count === 1 ? "" : "s"}.`))
      : el("p", { className: "soft" }, "Add a picture under Look first: attention distance depends on the picture."));
  }
}

async function drawCard(card) {
  const { model, root } = card;
  card.isDrawn = true;
  const figures = await ask(query("/figures", { model: model.name }));
  const notes = model.notes.map((note) => el("p", { className: "soft fine" }, note));
  const parts = [el("div", { className: "panel figure" }, filters(figures.filters))];
  parts.push(el("div", { className: "panel figure" }, figures.positions
    ? positions(figures.positions)
    : el("p", { className: "soft" }, figures.missing)));
  if (model.num_layers) parts.push((card.distance = el("div", { className: "panel" })));
  root.replaceChildren(el("div", { className: "panel" }, el("h2", {}, model.title), facts(model), ...notes), el("div", { className: "figures" }, parts));
}

function facts(model) {
  const values = {
    Architecture: model.variant ?? "custom",
    Parameters: `${(model.parameters / 1e6).toFixed(1)} M`,
    Input: `${model.image_size.join(" × ")} px`,
    Patches: model.grid ? `${model.grid.join(" × ")} of ${model.patch.join(" × ")} px` : null,
    "Layers × heads": model.num_layers ? `${model.num_layers} × ${model.num_heads}` : null,
    Features: model.width,
    Classes: model.classes?.length ?? "none",
    Engine: model.backend,
  };
  return el("dl", { className: "facts" }, Object.entries(values).filter(([, value]) => value !== null)
    .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value)))));
}

function filters({ shape: [count, rows, columns], data }) {
  const bytes = bytesOf(data);
  const across = 7;
  const canvas = el("canvas", {
    role: "img", "aria-label": `${count} filters`,
    width: across * (columns + GAP) - GAP, height: Math.ceil(count / across) * (rows + GAP) - GAP,
  });
  const context = canvas.getContext("2d");
  for (let k = 0; k < count; k++) {
    const image = context.createImageData(columns, rows);
    for (let i = 0; i < rows * columns; i++) {
      image.data.set([...bytes.subarray(3 * (k * rows * columns + i), 3 * (k * rows * columns + i) + 3), 255], 4 * i);
    }
    context.putImageData(image, (k % across) * (columns + GAP), Math.floor(k / across) * (rows + GAP));
  }
  return el("figure", {}, el("h3", {}, "Filters"), canvas,
    el("figcaption", {}, `The ${count} leading principal components of the filters that embed the patches.`));
}

function positions({ shape: [count, rows, columns], data }) {
  const bytes = bytesOf(data);
  const canvas = el("canvas", { role: "img", "aria-label": "Similarity of position embeddings", width: columns * (columns + GAP) - GAP, height: rows * (rows + GAP) - GAP });
  const context = canvas.getContext("2d");
  // The colours span the values that occur, without the 1 of each position with itself.
  let low = 255;
  let high = 0;
  for (let i = 0; i < bytes.length; i++) {
    if (i % (count + 1) === 0) continue; // a position with itself
    low = Math.min(low, bytes[i]);
    high = Math.max(high, bytes[i]);
  }
  for (let p = 0; p < count; p++) {
    const image = context.createImageData(columns, rows);
    for (let i = 0; i < count; i++) image.data.set([...colour((bytes[p * count + i] - low) / (high - low || 1)), 255], 4 * i);
    context.putImageData(image, (p % columns) * (columns + GAP), Math.floor(p / columns) * (rows + GAP));
  }
  const cosine = (byte) => ((byte / 255) * 2 - 1).toFixed(2);
  return el("figure", {}, el("h3", {}, "Positions"), canvas,
    el("figcaption", {}, `One tile per position: the cosine similarity of its embedding to all others (dark ${cosine(low)}, bright ${cosine(high)}).`));
}
