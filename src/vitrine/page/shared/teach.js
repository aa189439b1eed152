// Few-shot classification: examples per class, features from the server, the closed form in the page.
import { ask, query } from "./api.js";
import { $, el, notice } from "./dom.js";
import { bar } from "./look.js";
import { chooseFiles, picturesOf } from "./picture.js";
import { L2, scores, solve } from "./ridge.js";

const FORMAT = "vitrine few-shot classifier";
const state = { model: null, classes: [], numClasses: 0, classifier: null, tried: null };

export function startTeach(models) {
  state.model = models[0];
  addClass();
  addClass();
  $("#add-class").addEventListener("click", () => addClass().name.focus());
  $("#download").addEventListener("click", download);
  $("#restore").addEventListener("click", async () => {
    const [file] = await chooseFiles($("#classifier-file"));
    if (file) restore(file);
  });
  const zone = $("#try-drop");
  zone.addEventListener("click", async () => tryFirst(await chooseFiles($("#file"))));
  receive(zone, tryFirst);
}

function receive(zone, take) {
  zone.addEventListener("dragover", (event) => { event.preventDefault(); zone.classList.add("over"); });
  zone.addEventListener("dragleave", () => zone.classList.remove("over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    event.stopPropagation();
    zone.classList.remove("over");
    $("#veil").classList.remove("on");
    take(picturesOf(event.dataTransfer));
  });
}

function addClass(title = "") {
  const number = (state.numClasses += 1); // never used twice, also after a class was removed
  const name = el("input", { type: "text", value: title, placeholder: `Class ${number}`, maxLength: 80, oninput: learn });
  name.setAttribute("aria-label", `Name of class ${number}`);
  const thumbs = el("div", { className: "thumbs" });
  const made = { name, thumbs, examples: [] };
  const add = el("button", { className: "add", title: "Add examples", onclick: async () => addExamples(made, await chooseFiles($("#files"))) }, "+");
  add.setAttribute("aria-label", `Add examples to class ${number}`);
  const remove = el("button", { className: "quiet", onclick: () => removeClass(made) }, "Remove");
  made.card = el("div", { className: "class-card" }, el("header", {}, name, remove), thumbs);
  thumbs.append(add);
  receive(made.card, (files) => addExamples(made, files));
  state.classes.push(made);
  $("#classes").append(made.card);
  return made;
}

function removeClass(which) {
  for (const example of which.examples) URL.revokeObjectURL(example.address);
  which.card.remove();
  state.classes = state.classes.filter((each) => each !== which);
  learn();
}

export async function addExamples(which, files) {
  await Promise.all(files.map(async (file) => {
    const address = URL.createObjectURL(file);
    const example = { address, features: null };
    const remove = () => {
      which.examples = which.examples.filter((each) => each !== example);
      URL.revokeObjectURL(address);
      thumb.remove();
      learn();
    };
    const thumb = el("button", { className: "thumb wait", title: "Remove example", onclick: remove }, el("img", { src: address, alt: file.name ?? "example" }));
    which.thumbs.insertBefore(thumb, which.thumbs.lastElementChild);
    try {
      example.features = await embed(file);
      which.examples.push(example);
      thumb.classList.remove("wait");
    } catch (error) {
      remove();
      notice(error.message);
    }
  }));
  learn();
}

async function embed(file) {
  return (await ask(query("/embed", { model: state.model.name }), { picture: file })).features;
}

const nameOf = (each) => each.name.value.trim() || each.name.placeholder;

// Two classes may be given the same name; in the classifier the second is "name (2)".
function distinctNames(classes) {
  const names = [];
  for (const each of classes) {
    let name = nameOf(each);
    for (let copy = 2; names.includes(name); copy++) name = `${nameOf(each)} (${copy})`;
    names.push(name);
  }
  return names;
}

function learn() {
  const taught = state.classes.filter((each) => each.examples.length);
  state.classifier = null;
  if (taught.length > 1) {
    const rows = taught.flatMap((each) => each.examples.map((example) => example.features));
    const labels = taught.flatMap((each, k) => each.examples.map(() => k));
    state.classifier = { classes: distinctNames(taught), ...solve(rows, labels, taught.length), examples: labels.length };
  }
  showTried();
}

function showTried() {
  const { classifier, tried } = state;
  $("#download").disabled = !classifier;
  $("#try-state").textContent = classifier
    ? `${classifier.classes.length} classes${classifier.examples ? ` from ${classifier.examples} examples` : ""}: ready.`
    : "Add at least one example to two classes.";
  if (!tried) {
    $("#try-result").replaceChildren();
    return;
  }
  const parts = [el("img", { className: "tried", src: tried.address, alt: "Picture to try" })];
  if (classifier && tried.features) {
    const ranked = scores(classifier, tried.features).map((score, k) => ({ label: classifier.classes[k], score }));
    ranked.sort((a, b) => b.score - a.score);
    parts.push(el("ol", { className: "bars" }, ranked.slice(0, 5).map(({ label, score }) => bar(label, score.toFixed(2), (score + 1) / 2))));
    parts.push(el("p", { className: "soft fine" }, "Scores near 1 mean yes, near −1 no."));
  }
  $("#try-result").replaceChildren(...parts);
}

export async function tryFirst([file]) {
  if (!file) return;
  if (state.tried) URL.revokeObjectURL(state.tried.address);
  state.tried = { address: URL.createObjectURL(file), features: null };
  showTried();
  try {
    state.tried.features = await embed(file);
    notice(null);
  } catch (error) {
    URL.revokeObjectURL(state.tried.address);
    state.tried = null;
    notice(error.message);
  }
  showTried();
}

function download() {
  const { classes, weight, bias } = state.classifier;
  const values = {
    format: FORMAT, model: state.model.name, width: state.model.width, l2: L2, classes,
    weight: weight.map((row) => [...row]), bias: [...bias],
  };
  const address = URL.createObjectURL(new Blob([JSON.stringify(values)], { type: "application/json" }));
  el("a", { href: address, download: "classifier.json" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

async function restore(file) {
  try {
    const values = JSON.parse(await file.text());
    if (values.format !== FORMAT) throw new Error("it was not downloaded from this page");
    if (values.width !== state.model.width) throw new Error(`it has ${values.width} features, the model has ${state.model.width}`);
    state.classifier = { classes: values.classes, weight: values.weight.map((row) => Float64Array.from(row)), bias: values.bias };
    notice(null);
    showTried();
  } catch (error) {
    notice(`Cannot open the classifier: ${error.message}.`);
  }
}
