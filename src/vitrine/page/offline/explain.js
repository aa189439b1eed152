// What the model attends to, from the attention of all layers: the numbers of inspection/ and serving/explanation.py.
// weights: Float32Array (L layers, H heads, T tokens, T), of the tokens the last N = rows x columns are patches.

// model: { layers, heads, first, grid, stride, reads_class_token }. Returns what the server's /explain returns.
export function explain(weights, model) {
  const { layers: L, heads: H, first, grid } = model;
  const N = grid[0] * grid[1];
  const T = first + N;
  const matrix = (layer, head) => weights.subarray((layer * H + head) * T * T, (layer * H + head + 1) * T * T);
  const apart = distances(grid, model.stride);
  const described = [];
  const far = [];
  for (let layer = 0; layer < L; layer++) {
    const heads = Array.from({ length: H }, (_, head) => matrix(layer, head));
    described.push(describeLayer(heads, layer, model, T));
    far.push(heads.map((head) => meanDistance(head, apart, first, T)));
  }
  return {
    grid, num_layers: L, num_heads: H,
    seen_from: model.reads_class_token ? "class token" : "mean over patches",
    rollout: onGrid(rollOut(matrix, model, T), grid),
    distance: far,
    layers: described,
  };
}

function describeLayer(heads, layer, { first, grid, reads_class_token }, T) {
  const N = T - first;
  const seen = heads.map((head) => fromOutput(head, first, T, reads_class_token));
  const rows = new Float32Array(heads.length * (N + 1) * N);
  heads.forEach((head, h) => {
    rows.set(seen[h], h * (N + 1) * N);
    for (let i = 0; i < N; i++) {
      rows.set(head.subarray((first + i) * T + first, (first + i + 1) * T), (h * (N + 1) + i + 1) * N);
    }
  });
  // A server sends bytes and the value of 255 in each row; here the values stay whole, as if 255 were the unit.
  const maximum = heads.map(() => new Uint8Array(N + 1).fill(255));
  return { layer, heads: seen.map((map) => onGrid(map, grid)), bytes: rows, matrix: { maximum } };
}

// The output's weights on the patches: the class token's row, or the mean of the patches' rows.
function fromOutput(matrix, first, T, readsClassToken) {
  if (readsClassToken) return matrix.slice(first, T);
  const map = new Float32Array(T - first);
  for (let i = first; i < T; i++) for (let j = first; j < T; j++) map[j - first] += matrix[i * T + j] / (T - first);
  return map;
}

// Attention rollout from the output to the patches: one row through the layers, last layer first.
function rollOut(matrix, { layers: L, heads: H, first, reads_class_token }, T) {
  let row = new Float64Array(T);
  if (reads_class_token) row[0] = 1;
  else row.fill(1 / (T - first), first);
  for (let layer = L - 1; layer >= 0; layer--) {
    const next = new Float64Array(T);
    const heads = Array.from({ length: H }, (_, head) => matrix(layer, head));
    for (let i = 0; i < T; i++) {
      if (!row[i]) continue;
      const kept = new Float64Array(T);
      for (const head of heads) for (let j = 0; j < T; j++) kept[j] += head[i * T + j] / H;
      kept[i] += 1;
      const total = kept.reduce((sum, value) => sum + value, 0);
      for (let j = 0; j < T; j++) next[j] += (row[i] * kept[j]) / total;
    }
    row = next;
  }
  return row.subarray(first);
}

// The distance in pixels between the centres of any two patches, (N x N).
function distances([rows, columns], [down, across]) {
  const N = rows * columns;
  const apart = new Float64Array(N * N);
  for (let a = 0; a < N; a++) {
    for (let b = 0; b < N; b++) {
      const dy = (Math.floor(a / columns) - Math.floor(b / columns)) * down;
      const dx = ((a % columns) - (b % columns)) * across;
      apart[a * N + b] = Math.hypot(dy, dx);
    }
  }
  return apart;
}

function meanDistance(matrix, apart, first, T) {
  const N = T - first;
  let mean = 0;
  for (let i = 0; i < N; i++) {
    let [sum, total] = [0, 0];
    for (let j = 0; j < N; j++) {
      const weight = matrix[(first + i) * T + first + j];
      sum += weight * apart[i * N + j];
      total += weight;
    }
    mean += sum / total / N;
  }
  return mean;
}

const onGrid = (flat, [rows, columns]) =>
  Array.from({ length: rows }, (_, row) => Array.from(flat.subarray(row * columns, (row + 1) * columns)));
