// Mean attention distance per layer and head (the paper's Figure 7, right), of one picture and of all shown ones.
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
  const total = remembered.get(name);
  return total ? { count: total.count, distance: total.sum.map((row) => row.map((value) => value / total.count)) } : null;
}

export function distanceChart(distance, model) {
  const points = distance.flatMap((row, l) =>
    row.map((value, h) => [l + 1, value, `Layer ${l + 1}, head ${h + 1}: ${value.toFixed(0)} pixels`]));
  const medians = distance.map((row, l) => [l + 1, median(row)]);
  const drawing = chart(
    [{ name: "head", kind: "dots", points }, { name: "median", kind: "line", points: medians }],
    { x: "layer", y: null, from: 0, label: `Mean attention distance in pixels by layer for ${model.title}` },
  );
  return el("figure", {}, drawing, el("figcaption", { className: "caption" }, "Mean distance in pixels between a patch and the patches it attends to. One dot per head; the line is the median."));
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
