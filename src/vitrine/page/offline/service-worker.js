// Keeps the whole folder for use without a network, and isolates the page so that WebAssembly may use threads.
const NAME = "vitrine EXPORT_ID";
const FILES = "files.json"; // what to keep from the start; anything else of this folder is kept once it was used
const HEADERS = { "Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Embedder-Policy": "require-corp" };

self.addEventListener("install", (event) => {
  self.skipWaiting();
  event.waitUntil((async () => {
    const names = await (await fetch(FILES)).json();
    await (await caches.open(NAME)).addAll(["./", ...names]);
  })());
});

self.addEventListener("activate", (event) => {
  event.waitUntil((async () => {
    const path = new URL("./", location).pathname;
    for (const name of await caches.keys()) {
      // Other exports on the same host have caches of their own; only older ones of this folder go.
      if (name.startsWith("vitrine ") && name !== NAME && (await isOf(name, path))) await caches.delete(name);
    }
    await self.clients.claim();
  })());
});

async function isOf(name, path) {
  const kept = await (await caches.open(name)).keys();
  return kept.some((request) => new URL(request.url).pathname === path);
}

self.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method === "GET" && new URL(request.url).origin === location.origin) event.respondWith(answer(request));
});

async function answer(request) {
  const cache = await caches.open(NAME);
  let response = await cache.match(request, { ignoreSearch: true });
  if (!response) {
    response = await fetch(request);
    if (response.status === 200) await cache.put(request, response.clone());
  }
  const headers = new Headers(response.headers);
  for (const [name, value] of Object.entries(HEADERS)) headers.set(name, value);
  return new Response(response.body, { status: response.status, statusText: response.statusText, headers });
}
