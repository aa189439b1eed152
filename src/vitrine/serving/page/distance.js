// Attention distance by layer and head (Figure 7, right), of one picture and over all that were shown.
import { chart } from "./charts.js";
import { el } from "./dom.js";

const remembered = new Map();

export function rememberDistance(name, distance) {
  const before = remembered.get(name) ?? { count: 0, sum: distance.map((row) => row.map(() => 0)) };
  before.sum = before.sum.map((row, l) => row.map((value, h) => value + distance[l][h]));
  before.count += 1;
  remembered.set(name, before);
}

export function meanDistance(name) {
  const found = remembered.get(name);
  return found ? { count: found.count, distance: found.sum.map((row) => row.map((value) => value / found.count)) } : null;
}

export function distanceChart(distance, model) {
  const points = distance.flatMap((row, l) =>
    row.map((value, h) => [l + 1, value, `Layer ${l + 1}, head ${h + 1}: ${value.toFixed(0)} pixels`]));
  const medians = distance.map((row, l) => [l + 1, median(row)]);
  const drawing = chart(
    [{ name: "head", kind: "dots", points }, { name: "median", kind: "line", points: medians }],
    { x: "layer", y: null, from: 0, label: `Mean attention distance in pixels by layer for ${model.name}` },
  );
  return el("figure", {}, drawing, el("figcaption", { className: "caption" }, "Pixels between a patch and what it attends to: a dot a head, the line is their median."));
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
