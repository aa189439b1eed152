// The answers of the server, computed in this browser: the same questions, the same form (served/api.js sends them).
import { notice } from "./dom.js";

const TOP = 5;
const APPLIES = 0.5; // probability from which a label applies, where a picture may have several
const worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
const waiting = new Map();
const computed = new WeakMap(); // one computation per picture, whatever is asked about it
let count = 0;
let model = null;
let isOpen = null;

export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

worker.onmessage = ({ data: { id, result, error } }) => {
  const { resolve, reject } = waiting.get(id);
  waiting.delete(id);
  if (error) reject(new Refused(422, error));
  else resolve(result);
};

function inWorker(kind, values = {}, transfer = []) {
  return new Promise((resolve, reject) => {
    waiting.set((count += 1), { resolve, reject });
    worker.postMessage({ id: count, kind, ...values }, transfer);
  });
}

const readJson = async (name) => (await fetch(new URL(name, document.baseURI))).json();

export const query = (path, values) =>
  `${path}?${new URLSearchParams(Object.entries(values).filter(([, value]) => value !== null))}`;

export async function ask(path, { picture = null, signal } = {}) {
  const { pathname, searchParams } = new URL(path, "http://localhost");
  if (pathname === "/models") return models();
  if (pathname === "/figures") return readJson("figures.json");
  const found = await compute(picture);
  signal?.throwIfAborted();
  if (pathname === "/embed") return { model: model.name, features: found.features };
  if (pathname === "/explain") return found.explained;
  return answer(found, Number(searchParams.get("top") ?? TOP));
}

async function models() {
  model = await readJson("model.json");
  isOpen ??= open();
  const entry = { ...model.entry, backend: `onnxruntime-web, weights in ${model.precision}` };
  return { models: [entry], awaited: [], limits: null, run: null, version: model.version };
}

// The page can be used while the model loads: pictures wait for it.
async function open() {
  try {
    const { engine } = await inWorker("open", { address: document.baseURI });
    document.body.dataset.engine = engine;
  } catch (error) {
    notice(`The model cannot be loaded: ${error.message}`);
  }
}

function compute(picture) {
  if (!computed.has(picture)) {
    computed.set(picture, picture.arrayBuffer().then((bytes) => inWorker("compute", { bytes }, [bytes])));
  }
  return computed.get(picture);
}

function answer({ logits, familiarity, none_of_these, milliseconds }, top) {
  const isMultiLabel = model.entry.is_multi_label;
  const probabilities = isMultiLabel ? logits.map((value) => 1 / (1 + Math.exp(-value))) : softmax(logits);
  const { classes } = model.entry;
  const order = probabilities.map((_, number) => number).sort((a, b) => probabilities[b] - probabilities[a]);
  return {
    model: model.name,
    labels: isMultiLabel ? classes.filter((_, number) => probabilities[number] >= APPLIES) : null,
    answers: order.slice(0, top).map((number) => ({ label: classes[number], number, probability: probabilities[number] })),
    familiarity, none_of_these, logits,
    size: model.preprocess.size,
    milliseconds: Math.round(milliseconds.prepare + milliseconds.model),
  };
}

function softmax(logits) {
  const most = Math.max(...logits);
  const raised = logits.map((value) => Math.exp(value - most));
  const total = raised.reduce((sum, value) => sum + value, 0);
  return raised.map((value) => value / total);
}

// Offline from the second visit on; also lets WebAssembly use several threads. http on another machine has none.
navigator.serviceWorker?.register(new URL("../service-worker.js", import.meta.url)).catch(() => {});
