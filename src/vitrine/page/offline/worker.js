// Computes beside the page: one picture's bytes in, logits, features and attention out. onnxruntime-web runs the model.
import { explain } from "./explain.js";
import { familiarity, readFamiliarity } from "./familiarity.js";
import { normalised, pixels } from "./preprocess.js";

const MOST_THREADS = 4;
let opened = null;

async function open(address) {
  const model = await (await fetch(new URL("model.json", address))).json();
  const { ort, engine, provider } = await runtime(address);
  const session = await ort.InferenceSession.create(new URL(model.file, address).href, { executionProviders: [provider] });
  const trust = model.trust ? readFamiliarity(await (await fetch(new URL(model.trust, address))).arrayBuffer()) : null;
  return { ort, engine, session, model, trust };
}

// WebGPU where the browser has it (and can pause WebAssembly, which this build needs); WebAssembly everywhere else.
async function runtime(address) {
  const wants = new URL(address).searchParams.get("engine");
  const hasGpu = wants !== "wasm" && "Suspending" in WebAssembly && (await navigator.gpu?.requestAdapter().catch(() => null));
  const [name, wasm] = hasGpu ? ["ort.jspi.min.js", "ort-wasm-simd-threaded.jspi"] : ["ort.wasm.min.js", "ort-wasm-simd-threaded"];
  const folder = new URL("onnxruntime-web/", address).href;
  const ort = await import(folder + name);
  ort.env.wasm.wasmPaths = { mjs: `${folder}${wasm}.js`, wasm: `${folder}${wasm}.wasm` };
  // Threads need a page that is isolated from others, which the service worker arranges from the second visit on.
  ort.env.wasm.numThreads = self.crossOriginIsolated ? Math.min(MOST_THREADS, navigator.hardwareConcurrency || 1) : 1;
  const engine = hasGpu ? "WebGPU" : `WebAssembly, ${ort.env.wasm.numThreads} thread${ort.env.wasm.numThreads > 1 ? "s" : ""}`;
  return { ort, engine, provider: hasGpu ? "webgpu" : "wasm" };
}

async function compute({ bytes }) {
  const { ort, session, model, trust } = await opened;
  const begin = performance.now();
  const picture = await pixels(new Uint8Array(bytes), model.preprocess);
  const input = normalised(picture, model.preprocess);
  const prepared = performance.now();
  const shape = [1, picture.channels, picture.height, picture.width];
  const outputs = await session.run({ pixels: new ort.Tensor("float32", input, shape) });
  const computed = performance.now();
  const features = outputs.embedding.data;
  return {
    pixels: picture.data,
    logits: outputs.logits ? Array.from(outputs.logits.data) : null,
    features: Array.from(features),
    ...(trust ? familiarity(features, trust, model.passed) : { familiarity: null, none_of_these: null }),
    explained: outputs.attention ? explain(outputs.attention.data, model.attention) : null,
    milliseconds: { prepare: prepared - begin, model: computed - prepared, explain: performance.now() - computed },
  };
}

self.onmessage = async ({ data: { id, kind, ...request } }) => {
  try {
    if (kind === "open") {
      opened = open(request.address);
      const { engine } = await opened;
      self.postMessage({ id, result: { engine } });
    } else {
      self.postMessage({ id, result: await compute(request) });
    }
  } catch (error) {
    self.postMessage({ id, error: String(error?.message ?? error) });
  }
};
