// SVG charts: several series over one x axis.
import { svg } from "./dom.js";

const BOX = { width: 460, height: 240, left: 46, right: 12, top: 14, bottom: 40 };

export function ticks(low, high, count = 4) {
  const raw = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((part) => part * power).find((each) => each >= raw);
  const values = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step) values.push(value);
  return values;
}

export const short = (value) => {
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(1);
  if (size >= 10000) return `${+(value / 1000).toFixed(1)}k`;
  return `${+value.toPrecision(4)}`;
};

// series: [{ name, points: [[x, y], ...], kind: "line" | "dots" }]; returns an <svg>.
export function chart(series, { x: xName, y: yName, from = null, label }) {
  const { width, height, left, right, top, bottom } = BOX;
  const all = series.flatMap((each) => each.points).filter(([, y]) => Number.isFinite(y));
  const xs = all.map(([x]) => x);
  const ys = all.map(([, y]) => y);
  let [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), from ?? Math.min(...ys), Math.max(...ys)];
  if (x0 === x1) [x0, x1] = [x0 - 1, x1 + 1];
  if (y0 === y1) [y0, y1] = [y0 - Math.abs(y0 || 1) * 0.1, y1 + Math.abs(y1 || 1) * 0.1];
  const X = (x) => left + ((x - x0) / (x1 - x0)) * (width - left - right);
  const Y = (y) => height - bottom - ((y - y0) / (y1 - y0)) * (height - top - bottom);
  const drawing = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  for (const y of ticks(y0, y1)) {
    drawing.append(
      svg("line", { class: "axis", x1: left, x2: width - right, y1: Y(y), y2: Y(y) }),
      svg("text", { x: left - 7, y: Y(y) + 4, "text-anchor": "end" }, short(y)),
    );
  }
  for (const x of ticks(x0, x1, 6).filter((each) => Number.isInteger(each))) {
    drawing.append(svg("text", { x: X(x), y: height - bottom + 18, "text-anchor": "middle" }, short(x)));
  }
  drawing.append(svg("text", { x: width - right, y: height - 4, "text-anchor": "end" }, xName));
  if (yName) drawing.append(svg("text", { x: left, y: top - 1 }, yName));
  series.forEach(({ points, kind, name }, i) => {
    const good = points.filter(([, y]) => Number.isFinite(y));
    const style = `s${(i % 4) + 1}`;
    if (kind === "dots") {
      for (const [x, y, text] of good) {
        const dot = svg("circle", { class: `dot ${style}`, cx: X(x), cy: Y(y), r: 4 });
        dot.append(svg("title", {}, text ?? `${name}: ${short(y)}`));
        drawing.append(dot);
      }
    } else if (good.length) {
      const path = good.map(([x, y], k) => `${k ? "L" : "M"}${X(x).toFixed(1)} ${Y(y).toFixed(1)}`).join("");
      drawing.append(svg("path", { class: `line ${style}`, d: path }));
      if (good.length === 1) drawing.append(svg("circle", { class: style, cx: X(good[0][0]), cy: Y(good[0][1]), r: 3 }));
    }
  });
  follow(drawing, series.filter((each) => each.kind !== "dots"), { X, Y, width, xName });
  return drawing;
}

// A vertical line under the pointer with the values at that x.
function follow(drawing, series, { X, width, xName }) {
  if (!series.some((each) => each.points.length > 1)) return;
  const cursor = svg("line", { class: "cursor", y1: BOX.top, y2: BOX.height - BOX.bottom, visibility: "hidden" });
  const text = svg("text", { y: BOX.top + 10, visibility: "hidden" });
  drawing.append(cursor, text);
  drawing.addEventListener("pointermove", (event) => {
    const box = drawing.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * width;
    const near = (points) => points.reduce((a, b) => (Math.abs(X(b[0]) - at) < Math.abs(X(a[0]) - at) ? b : a));
    const nearest = series.filter((each) => each.points.length).map(({ name, points }) => ({ name, point: near(points) }));
    const x = nearest[0].point[0];
    const isRight = X(x) > width * 0.6;
    cursor.setAttribute("x1", X(x));
    cursor.setAttribute("x2", X(x));
    text.setAttribute("x", X(x) + (isRight ? -8 : 8));
    text.setAttribute("text-anchor", isRight ? "end" : "start");
    text.textContent = `${xName} ${short(x)}: ${nearest.map(({ name, point }) => `${name} ${short(point[1])}`).join(", ")}`;
    for (const each of [cursor, text]) each.setAttribute("visibility", "visible");
  });
  drawing.addEventListener("pointerleave", () => {
    for (const each of [cursor, text]) each.setAttribute("visibility", "hidden");
  });
}
