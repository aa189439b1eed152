// The curves of a training run: new records every two seconds.
import { ask, query } from "./api.js";
import { chart, short } from "./charts.js";
import { $, el } from "./dom.js";

const EVERY = 2000;
// Curves with more points are thinned out.
const MOST_POINTS = 600;
// A stopped run is not recorded as such; after this time without a record it is no longer shown as training.
const SILENT_SECONDS = 120;
const PLOTS = [
  { title: "Loss", names: { loss: "training", val_loss: "validation" } },
  { title: "Accuracy", names: { accuracy: "training", val_accuracy: "validation" } },
  { title: "Learning rate", names: { lr: "learning rate" } },
  { title: "Images per second", names: { images_per_second: "images/s" } },
  { title: "Gradient norm", names: { gradient_norm: "gradient norm" } },
  { title: "Waiting for data", names: { waiting_for_data: "fraction of time" } },
  { title: "Memory", names: { memory_gib: "GiB" } },
];
const KNOWN = new Set(["step", ...PLOTS.flatMap((plot) => Object.keys(plot.names))]);
const records = [];
let next = 0;
let isRunning = false;

export function startTraining(name) {
  $("#tab-training").hidden = false;
  $("#run-name").textContent = name;
  if (!isRunning) poll();
}

async function poll() {
  isRunning = true;
  let isFinished = false;
  try {
    const run = await ask(query("/run", { after: next }));
    if (run.next < next) records.length = 0; // a resumed run rewrites its last records
    next = run.next;
    isFinished = run.is_finished;
    records.push(...run.records);
    if (run.records.length || !$("#curves").children.length) drawCurves(run);
    else showState(run);
    if (run.records.length) setTimeout(poll, 50); // there may be more
    else if (!isFinished) setTimeout(poll, EVERY);
  } catch (error) {
    $("#run-state").textContent = error.message;
    setTimeout(poll, EVERY * 3);
  }
}

function showState(run) {
  const last = records.at(-1);
  const state = $("#run-state");
  const step = last ? `step ${last.step.toLocaleString("en")}` : "no records yet";
  const silent = run.silent_seconds ?? 0;
  if (run.is_finished) state.replaceChildren(`Finished, ${step}`);
  else if (silent > SILENT_SECONDS) state.replaceChildren(`Not finished, ${step}; no new records for ${duration(silent)}`);
  else state.replaceChildren(el("span", {}, el("i", { className: "live" }), "Training"), `, ${step}`);
}

function duration(seconds) {
  const minutes = Math.floor(seconds / 60);
  return minutes < 120 ? `${minutes} minutes` : minutes < 2880 ? `${Math.floor(minutes / 60)} hours` : `${Math.floor(minutes / 1440)} days`;
}

function drawCurves(run) {
  showState(run);
  const others = new Set(records.flatMap((record) => Object.keys(record)).filter((name) => !KNOWN.has(name)));
  const plots = [...PLOTS, ...[...others].map((name) => ({ title: words(name), names: { [name]: words(name) } }))];
  $("#curves").replaceChildren(...plots.map(plot).filter(Boolean));
}

const words = (name) => name.replaceAll("_", " ").replace(/^./, (letter) => letter.toUpperCase());

function plot({ title, names }) {
  const series = Object.entries(names)
    .map(([key, name]) => ({ name, kind: "line", points: points(key) }))
    .filter((each) => each.points.length);
  if (!series.length) return null;
  const key = series.map(({ name, points: [...all] }, i) =>
    el("span", { className: `s${i + 1}` }, el("i"), `${name} ${short(all.at(-1)[1])}`));
  return el("div", { className: "panel" }, el("h2", {}, title), chart(series, { x: "step", label: `${title} by step` }), el("div", { className: "key" }, key));
}

function points(key) {
  const all = records.filter((record) => typeof record[key] === "number").map((record) => [record.step, record[key]]);
  const stride = Math.ceil(all.length / MOST_POINTS);
  return all.filter((_, i) => i % stride === 0 || i === all.length - 1);
}
