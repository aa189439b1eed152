// "None of these": how far features are from the training images, as evaluation/familiarity.py measures it.
const HEADER_BYTES = 8;

// Reads trust.safetensors; null where it has no distance. D features, K classes, H held-out images.
export function readFamiliarity(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, HEADER_BYTES, length)));
  if (!header["distance.means"]) return null;
  const tensor = (name) => {
    const { data_offsets: [from, to], shape } = header[`distance.${name}`];
    const start = HEADER_BYTES + length + from;
    return { values: Float64Array.from(new Float32Array(buffer.slice(start, start + to - from))), shape };
  };
  const [means, centre, within, whole] = ["means", "centre", "within", "whole"].map(tensor);
  const [K, D] = means.shape;
  const projected = Array.from({ length: K }, (_, k) => times(means.values.subarray(k * D, (k + 1) * D), within.values));
  return { centre: centre.values, within: within.values, whole: whole.values, means: projected, heldOut: tensor("held_out").values };
}

// Returns { familiarity: share of held-out images that are at least as far, none_of_these }.
export function familiarity(features, { centre, within, whole, means, heldOut }, passed) {
  const row = times(features, within);
  const own = Math.min(...means.map((mean) => mean.reduce((sum, value, i) => sum + (row[i] - value) ** 2, 0)));
  const background = times(Float64Array.from(features, (value, i) => value - centre[i]), whole)
    .reduce((sum, value) => sum + value * value, 0);
  const distance = own - background;
  const place = Math.min(Math.ceil((heldOut.length + 1) * passed), heldOut.length);
  return {
    familiarity: heldOut.reduce((count, value) => count + (value >= distance), 0) / heldOut.length,
    none_of_these: distance > heldOut[place - 1],
  };
}

// A row (D) times a matrix (D x D).
function times(row, matrix) {
  const D = row.length;
  const made = new Float64Array(D);
  for (let i = 0; i < D; i++) for (let j = 0; j < D; j++) made[j] += row[i] * matrix[i * D + j];
  return made;
}
