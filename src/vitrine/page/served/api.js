// Requests to the server.
import { $ } from "./dom.js";

// Paths are relative to the page, which may be below any path of a proxy.
export const here = (path) => path.replace(/^\//, "");

let key = sessionStorage.getItem("key") ?? "";

export class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

export async function ask(path, { picture = null, signal } = {}) {
  for (;;) {
    const headers = key ? { "X-API-Key": key } : {};
    // The browser tells the type by the extension, the server by the content.
    if (picture) headers["Content-Type"] = "application/octet-stream";
    let response;
    try {
      response = await fetch(here(path), { method: picture ? "POST" : "GET", body: picture, headers, signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refused(0, "The server does not respond. Is it still running?");
    }
    if (response.status === 401) {
      await askForKey();
      continue;
    }
    const answer = await response.json().catch(() => null);
    if (response.ok && answer !== null) return answer;
    throw new Refused(response.status, sentence(answer?.error ?? `The server responded with status ${response.status}.`));
  }
}

function sentence(text) {
  const whole = text[0].toUpperCase() + text.slice(1);
  return /[.!?]$/.test(whole) ? whole : `${whole}.`;
}

let asking = null;

function askForKey() {
  asking ??= new Promise((resolve) => {
    const dialog = $("#ask-key");
    dialog.addEventListener("close", () => {
      key = $("#key").value;
      sessionStorage.setItem("key", key);
      asking = null;
      resolve();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

export const query = (path, values) =>
  `${path}?${new URLSearchParams(Object.entries(values).filter(([, value]) => value !== null))}`;
