// Attention maps: from the server's response to one value per patch, and to colours.
const RAMP = [
  [10, 8, 28], [52, 20, 92], [125, 32, 118], [200, 58, 78], [244, 118, 40], [253, 190, 78], [255, 246, 200],
];

export function colour(value) {
  const place = Math.min(Math.max(value, 0), 1) * (RAMP.length - 1);
  const low = Math.min(Math.floor(place), RAMP.length - 2);
  return RAMP[low].map((start, i) => start + (RAMP[low + 1][i] - start) * (place - low));
}

export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

export function matrixBytes({ num_layers: L, num_heads: H, grid: [rows, columns] }) {
  return L * H * (rows * columns + 1) * rows * columns;
}

// The attention of one query to N patches in one layer; head -1 is the mean over heads, patch null the output.
export function seenFrom(layer, { head, patch, cells }) {
  const heads = head < 0 ? layer.heads.map((_, i) => i) : [head];
  const map = new Float32Array(cells);
  for (const h of heads) {
    if (patch === null) {
      layer.heads[h].flat().forEach((value, i) => (map[i] += value / heads.length));
    } else {
      layer.bytes ??= bytesOf(layer.matrix.data);
      const start = (h * (cells + 1) + patch + 1) * cells;
      const scale = layer.matrix.maximum[h][patch + 1] / 255 / heads.length;
      for (let i = 0; i < cells; i++) map[i] += layer.bytes[start + i] * scale;
    }
  }
  return map;
}

// The value of the brightest colour: a single outlier must not darken all other patches.
function brightest(map) {
  const sorted = Float32Array.from(map).sort();
  const most = sorted.at(-1);
  return Math.max(sorted[Math.floor(0.98 * (sorted.length - 1))], most / 4, Number.MIN_VALUE);
}

// A map as a small image, one pixel per patch, drawn over the picture.
export function painted(map, [rows, columns], strength) {
  const most = brightest(map);
  const canvas = new OffscreenCanvas(columns, rows);
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  map.forEach((value, i) => {
    const share = Math.min(value / most, 1);
    image.data.set([...colour(share), 255 * strength * (0.82 - 0.3 * share)], 4 * i);
  });
  context.putImageData(image, 0, 0);
  return canvas;
}

const ATLAS_GAP = 2;
const MOST_TILE = 80; // pixels on the screen

// All layers (columns) and heads (rows), one pixel per patch.
export function drawAtlas(canvas, explained, { layer, head, mark }) {
  const [rows, columns] = explained.grid;
  const [stepX, stepY] = [columns + ATLAS_GAP, rows + ATLAS_GAP];
  canvas.width = explained.num_layers * stepX + ATLAS_GAP;
  canvas.height = explained.num_heads * stepY + ATLAS_GAP;
  canvas.style.maxWidth = `${explained.num_layers * MOST_TILE}px`; // two layers must not fill the page
  const context = canvas.getContext("2d");
  for (const each of explained.layers) {
    each.heads.forEach((grid, h) => {
      const most = brightest(grid.flat());
      const image = context.createImageData(columns, rows);
      grid.flat().forEach((value, i) => image.data.set([...colour(value / most), 255], 4 * i));
      context.putImageData(image, each.layer * stepX + ATLAS_GAP, h * stepY + ATLAS_GAP);
    });
  }
  context.strokeStyle = mark;
  context.lineWidth = ATLAS_GAP;
  const top = head < 0 ? 0 : head * stepY;
  const height = head < 0 ? canvas.height : stepY + ATLAS_GAP;
  const half = ATLAS_GAP / 2;
  context.strokeRect(layer * stepX + half, top + half, stepX, height - ATLAS_GAP);
}
