// Where things are: a mask over the picture, or boxes on it, with a list of what was found.
import { ask, query } from "./api.js";
import { $, el, percent } from "./dom.js";

const MOST_OPAQUE = 0.85; // what a mask covers stays visible
const LEAST_SCORE = 0.05; // boxes below it are not requested
export const locates = (model) => ["masks", "boxes", "instances"].includes(model.answers);

// What the models answer about a picture, before there is one.
export const invitation = (models) => models.some((model) => model.answers === "masks")
  ? "Add a picture to see what covers which part of it."
  : "Add a picture to see the objects in it, and where they are.";

// Shows the controls that the models have: strength for masks, the least score for objects.
export function showLocateControls(models, onChange) {
  const boxes = models.some((model) => model.answers === "boxes" || model.answers === "instances");
  const masks = models.some((model) => model.answers === "masks" || model.answers === "instances");
  const attentive = models.some((model) => model.num_layers);
  $("#mode").hidden = !attentive;
  $("#strength-control").hidden = !attentive && !masks;
  $("#score-control").hidden = !boxes;
  $("#controls").hidden = !attentive && !boxes && !masks;
  $("#score").oninput = () => { showScore(); onChange(); };
  showScore();
}

const leastScore = () => $("#score").value / 100;
const showScore = () => { $("#score-value").textContent = percent(leastScore()); };

export async function askLocation(model, picture, signal) {
  const located = await ask(query("/locate", { model: model.name, least: LEAST_SCORE }), { picture: picture.blob, signal });
  if (located.mask) located.bitmap = await bitmapOf(located.mask.png);
  for (const one of located.boxes ?? []) if (one.mask) one.bitmap = await bitmapOf(one.mask);
  return located;
}

function bitmapOf(png) {
  const bytes = Uint8Array.from(atob(png), (letter) => letter.charCodeAt(0));
  return createImageBitmap(new Blob([bytes], { type: "image/png" }));
}

export function drawLocation(canvas, located, strength) {
  const context = canvas.getContext("2d");
  if (located.bitmap) {
    context.save();
    context.globalAlpha = MOST_OPAQUE * strength;
    context.imageSmoothingEnabled = false;
    context.drawImage(located.bitmap, 0, 0, canvas.width, canvas.height);
    context.restore();
    return;
  }
  const [down, across] = [canvas.height / located.picture[0], canvas.width / located.picture[1]];
  const letters = Math.max(20, Math.round(canvas.width / 32));
  context.font = `600 ${letters}px system-ui, sans-serif`;
  context.textBaseline = "top";
  const shown = located.boxes.filter((one) => one.score >= leastScore());
  for (const { label, score, box, colour, bitmap } of shown.reverse()) { // the best last, on top
    const [left, top, right, bottom] = [box[0] * across, box[1] * down, box[2] * across, box[3] * down];
    if (bitmap) {
      context.save();
      context.globalAlpha = MOST_OPAQUE * strength;
      context.drawImage(bitmap, left, top, right - left, bottom - top);
      context.restore();
    }
    for (const [style, width] of bitmap ? [] : [["#ffffffcc", 7], [colour, 4]]) {
      context.lineWidth = width;
      context.strokeStyle = style;
      context.strokeRect(left, top, right - left, bottom - top);
    }
    const words = `${label} ${score.toFixed(2)}`;
    const wide = context.measureText(words).width + 10;
    const x = Math.max(0, Math.min(left, canvas.width - wide));
    const y = Math.max(0, top - letters - 6);
    context.fillStyle = colour;
    context.fillRect(x, y, wide, letters + 6);
    context.fillStyle = isBright(colour) ? "#000" : "#fff";
    context.fillText(words, x + 5, y + 3);
  }
}

function isBright(colour) {
  const [red, green, blue] = [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));
  return 0.3 * red + 0.6 * green + 0.1 * blue > 140;
}

// One row per class of a mask, or per object.
export function foundRows(located) {
  if (located.mask) {
    return located.mask.classes.map(({ label, share, colour, is_background: isClear }) =>
      row(isClear ? `${label} (not coloured)` : label, percent(share), share, isClear ? null : colour));
  }
  const shown = located.boxes.filter((one) => one.score >= leastScore());
  if (!shown.length) return [el("li", {}, el("span", { className: "soft" }, "No object with at least this score."))];
  return shown.map(({ label, score, colour }) => row(label, percent(score), score, colour));
}

function row(label, text, share, colour) {
  const fill = el("span", { className: "fill" });
  fill.style.transform = `scaleX(${Math.min(Math.max(share, 0), 1)})`;
  const swatch = el("i", { className: "swatch" });
  fill.style.background = colour ?? "var(--soft)";
  if (colour) swatch.style.background = colour;
  return el("li", {}, el("span", { className: "label" }, swatch, label), el("span", { className: "value" }, text),
    el("span", { className: "track" }, fill));
}

export function summary(located) {
  if (located.mask) return "The class of every pixel; the share of the picture that each covers.";
  const count = located.boxes.filter((one) => one.score >= leastScore()).length;
  return `${count} object${count === 1 ? "" : "s"} with a score of at least ${percent(leastScore())}.`;
}
