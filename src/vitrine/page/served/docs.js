// The OpenAPI document as a page with a form for each route.
import { ask, here, query } from "./api.js";
import { $, el, notice } from "./dom.js";

const MOST_SHOWN = 4000;

async function start() {
  if (localStorage.getItem("theme")) document.documentElement.dataset.theme = localStorage.getItem("theme");
  const document_ = await ask("/openapi.json");
  $("#lead").textContent = document_.info.description;
  $("#example").textContent = `curl -F file=@photo.jpg ${new URL("predict", document.baseURI)}`;
  const schemas = document_.components.schemas;
  const routes = Object.entries(document_.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, route]) => describe(path, method, route, schemas)));
  $("#routes").replaceChildren(...routes);
}

function describe(path, method, route, schemas) {
  const parameters = route.parameters ?? [];
  const inputs = parameters.map((parameter) => ({ parameter, input: el("input", { type: "text", placeholder: String(parameter.schema.default ?? ""), "aria-label": `${parameter.name} of ${path}` }) }));
  const file = route.requestBody ? el("input", { type: "file", accept: "image/*" }) : null;
  const out = el("pre", { hidden: true, tabIndex: 0, role: "region", "aria-label": `Response of ${path}` });
  const send = async () => {
    try {
      const values = Object.fromEntries(inputs.map(({ parameter, input }) => [parameter.name, input.value || null]));
      const address = query(path, values).replace(/\?$/, "");
      const answer = path === "/metrics" ? await (await fetch(here(address))).text() : await ask(address, { picture: file?.files[0] ?? null });
      out.textContent = (typeof answer === "string" ? answer : JSON.stringify(answer, null, 1)).slice(0, MOST_SHOWN);
      notice(null);
    } catch (error) {
      out.textContent = error.message;
    }
    out.hidden = false;
  };
  return el("details", { className: "route panel", open: path === "/predict" },
    el("summary", {}, el("span", { className: "method" }, method.toUpperCase()), el("strong", {}, path), el("span", { className: "soft" }, route.description ?? "")),
    el("div", {},
      inputs.length ? table(["parameter", "type", "meaning", "value"], inputs.map(({ parameter, input }) => [el("code", {}, parameter.name), kindOf(parameter.schema), parameter.description ?? "", input])) : null,
      route.requestBody ? el("p", {}, el("label", {}, `${route.requestBody.description} `, file)) : null,
      el("p", {}, el("button", { className: "primary", onclick: send }, "Send")), out,
      el("h2", {}, "Responses"),
      table(["status", "meaning", "content"], Object.entries(route.responses).map(([status, answer]) => [status, answer.description, fields(answer, schemas)]))));
}

function fields(answer, schemas) {
  const reference = Object.values(answer.content ?? {})[0]?.schema?.$ref;
  const properties = reference ? schemas[reference.split("/").at(-1)].properties : {};
  return el("div", {}, Object.entries(properties).map(([name, schema]) =>
    el("div", {}, el("code", {}, name), ` ${kindOf(schema)}`, schema.description ? el("span", { className: "soft" }, `: ${schema.description}`) : null)));
}

function kindOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.anyOf) return schema.anyOf.map(kindOf).join(" or ");
  if (schema.type === "array") return `list of ${kindOf(schema.items)}`;
  return schema.type ?? "any";
}

const table = (heads, rows) =>
  el("table", {}, el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell))))));

start().catch((error) => notice(error.message));
