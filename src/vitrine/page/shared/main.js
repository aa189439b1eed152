// The page: tabs, theme, and pictures that are dropped, pasted or chosen.
import { ask } from "./api.js";
import { $, $$, notice } from "./dom.js";
import { invitation, locates } from "./locate.js";
import { show, startLook } from "./look.js";
import { showModels, startModel } from "./model.js";
import { chooseFiles, picturesOf, takePicture } from "./picture.js";
import { startTeach, tryFirst } from "./teach.js";

const AWAITED_EVERY = 2000;
const tabs = $$("[role=tab]");

function select(tab, { focus = false } = {}) {
  for (const each of tabs) {
    const isOn = each === tab;
    each.setAttribute("aria-selected", isOn);
    each.tabIndex = isOn ? 0 : -1;
    $(`#${each.getAttribute("aria-controls")}`).hidden = !isOn;
  }
  if (focus) tab.focus();
  if (tab.id === "tab-model") showModels().catch((error) => notice(error.message));
  history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
}

const selected = () => tabs.find((tab) => tab.getAttribute("aria-selected") === "true");

function listenToTabs() {
  for (const tab of tabs) {
    tab.addEventListener("click", () => select(tab));
    tab.addEventListener("keydown", (event) => {
      const shown = tabs.filter((each) => !each.hidden);
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) select(shown[(shown.indexOf(tab) + step + shown.length) % shown.length], { focus: true });
    });
  }
}

function listenToTheme() {
  const root = document.documentElement;
  if (localStorage.getItem("theme")) root.dataset.theme = localStorage.getItem("theme");
  $("#theme").addEventListener("click", () => {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
  });
}

let limits = null;
let models = [];
let numServed = 0;

function take(files) {
  const [file] = files;
  if (!file) {
    notice("This is not a picture. Use JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF.");
    return;
  }
  if (limits && file.size > limits.upload_bytes) {
    notice(`The picture is ${(file.size / 2 ** 20).toFixed(1)} MiB, more than the limit of ${limits.upload_bytes / 2 ** 20} MiB.`);
    return;
  }
  if (selected().id === "tab-teach") {
    tryFirst(files);
    return;
  }
  if (!models.length) {
    notice("The run has no weights yet. Its model is served as soon as it has; its curves are under Training.");
    return;
  }
  select($("#tab-look"));
  show(file);
}

function listenToPictures() {
  let depth = 0;
  addEventListener("dragenter", () => { depth += 1; $("#veil").classList.toggle("on", selected().id !== "tab-teach"); });
  addEventListener("dragleave", () => { depth -= 1; if (depth <= 0) $("#veil").classList.remove("on"); });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => {
    event.preventDefault();
    depth = 0;
    $("#veil").classList.remove("on");
    take(picturesOf(event.dataTransfer));
  });
  addEventListener("paste", (event) => {
    const files = picturesOf(event.clipboardData);
    if (files.length) take(files);
  });
  for (const button of $$("[data-choose]")) {
    button.addEventListener("click", async () => {
      const files = await chooseFiles($("#file"));
      if (files.length) take(files);
    });
  }
  for (const button of $$("[data-camera]")) {
    button.addEventListener("click", async () => {
      const blob = await takePicture();
      if (blob) take([blob]);
    });
  }
}

async function start() {
  $("#opened-as-file").remove();
  listenToTabs();
  listenToTheme();
  listenToPictures();
  const served = await ask("/models");
  limits = served.limits;
  showServed(served);
  if (served.awaited.length) setTimeout(lookForAwaited, AWAITED_EVERY);
  if (served.run) (await import("./training.js")).startTraining(served.run);
  const wanted = tabs.find((tab) => !tab.hidden && `#${tab.getAttribute("aria-controls")}` === location.hash);
  select(wanted ?? (models.length ? $("#tab-look") : $("#tab-training")));
  document.body.dataset.ready = "yes";
}

// Two at most fit beside each other; ?model=NAME, once or twice, chooses among more.
function chosen(all) {
  const wanted = new URLSearchParams(location.search).getAll("model");
  const found = wanted.map((name) => all.find((model) => model.name === name)).filter(Boolean);
  return (found.length ? found : all).slice(0, 2);
}

function showServed(served) {
  const isFirst = !models.length;
  numServed = served.models.length;
  models = chosen(served.models);
  $("#about").textContent = `Vitrine ${served.version}: ${models.map((model) => model.title).join(" and ") || "no model yet"}`;
  if (!models.length) return;
  // A classifier is taught on features of whole pictures; masks and boxes have a head of their own.
  $("#tab-teach").hidden = models.every(locates);
  if (models.every(locates)) $("#lead").textContent = invitation(models);
  startLook(models);
  startModel(models);
  if (isFirst) startTeach(models);
}

// A run may be served before it has weights: its model is added when the server has it.
async function lookForAwaited() {
  try {
    const served = await ask("/models");
    if (served.models.length > numServed) {
      showServed(served);
      notice(null);
      select(selected()); // draws the current view again
    }
    if (!served.awaited.length) return;
  } catch (error) {
    notice(error.message);
  }
  setTimeout(lookForAwaited, AWAITED_EVERY);
}

start().catch((error) => notice(error.message));
