// Resampling with antialias, in the same whole numbers as torch (bilinear, bicubic) and Pillow (lanczos, nearest).
// Each filter becomes integer weights; a line of pixels is summed and rounded to a byte, first along the rows and then
// down the columns. Pictures are { data, height, width, channels } with channels last.
const FILTERS = {
  bilinear: { support: 1, at: (x) => Math.max(0, 1 - Math.abs(x)) },
  bicubic: { support: 2, at: cubic },
  lanczos: { support: 3, at: (x) => (Math.abs(x) < 3 ? sinc(x) * sinc(x / 3) : 0) },
};
const TORCH_BITS = 15; // of a signed weight of torch, its sign included
const PILLOW_BITS = 22;
// Pixels up to which a resized picture is computed whole (WHOLE_PIXELS in preprocess.py).
const WHOLE_PIXELS = 2 ** 22;

function cubic(x) {
  const far = Math.abs(x);
  const a = -0.5;
  if (far < 1) return ((a + 2) * far - (a + 3)) * far * far + 1;
  return far < 2 ? (((far - 5) * far + 8) * far - 4) * a : 0;
}

const sinc = (x) => (x === 0 ? 1 : Math.sin(x * Math.PI) / (x * Math.PI));

// The box (top, left, height, width) of a picture resized to (rows, columns).
export function resizeAndCrop(picture, [rows, columns], [top, left, height, width], interpolation) {
  if (rows * columns <= Math.max(WHOLE_PIXELS, 2 * height * width)) {
    return cropped(resize(picture, [rows, columns], interpolation), [top, left, height, width]);
  }
  const down = picture.height / rows;
  const across = picture.width / columns;
  const bottom = Math.min((top + height) * down, picture.height);
  const right = Math.min((left + width) * across, picture.width);
  const reach = (FILTERS[interpolation]?.support ?? 1) * Math.max(down, 1) + 1;
  const start = Math.max(0, Math.floor(top * down - reach));
  const stop = Math.min(picture.height, Math.ceil(bottom + reach));
  const band = along(cropped(picture, [start, 0, stop - start, picture.width]), [left * across, right], width, interpolation, PILLOW_BITS);
  return downwards(band, [top * down - start, bottom - start], height, interpolation, PILLOW_BITS);
}

export function resize(picture, [rows, columns], interpolation) {
  if (picture.height === rows && picture.width === columns) return picture;
  const bits = ["bilinear", "bicubic"].includes(interpolation) ? TORCH_BITS : PILLOW_BITS;
  const horizontally = (from) => along(from, [0, from.width], columns, interpolation, bits);
  const vertically = (from) => downwards(from, [0, from.height], rows, interpolation, bits);
  const growsFirst = picture.height * columns > Math.max(WHOLE_PIXELS, picture.height * picture.width);
  if (bits === TORCH_BITS && growsFirst) return horizontally(vertically(picture));
  return vertically(horizontally(picture));
}

function cropped({ data, width: across, channels }, [top, left, height, width]) {
  const made = new Uint8ClampedArray(height * width * channels);
  for (let row = 0; row < height; row++) {
    const from = ((top + row) * across + left) * channels;
    made.set(data.subarray(from, from + width * channels), row * width * channels);
  }
  return { data: made, height, width, channels };
}

// For each of `count` new pixels: the first old pixel and the integer weights of the old ones, and their precision.
function weightsOf(length, [from, to], count, interpolation, bits) {
  const scale = (to - from) / count;
  if (interpolation === "nearest") {
    const first = Int32Array.from({ length: count }, (_, i) => Math.min(Math.floor(from + (i + 0.5) * scale), length - 1));
    return { first, weights: Array.from(first, () => [1]), precision: 0 };
  }
  const { support, at } = FILTERS[interpolation];
  const stretch = Math.max(scale, 1);
  const reach = support * stretch;
  const first = new Int32Array(count);
  const real = [];
  for (let i = 0; i < count; i++) {
    const centre = from + (i + 0.5) * scale;
    const low = Math.max(0, Math.trunc(centre - reach + 0.5));
    const high = Math.min(length, Math.trunc(centre + reach + 0.5));
    const values = [];
    for (let x = low; x < high; x++) values.push(at((x - centre + 0.5) / stretch));
    const total = values.reduce((sum, value) => sum + value, 0);
    first[i] = low;
    real.push(values.map((value) => (total ? value / total : value)));
  }
  const precision = bits === TORCH_BITS ? torchPrecision(real) : bits;
  const weights = real.map((values) => values.map((value) => Math.trunc(value * 2 ** precision + (value < 0 ? -0.5 : 0.5))));
  return { first, weights, precision };
}

// As many bits as the largest weight leaves room for in sixteen.
function torchPrecision(real) {
  const most = real.reduce((high, values) => values.reduce((a, b) => Math.max(a, b), high), 0);
  let precision = 0;
  while (precision < PILLOW_BITS && Math.trunc(0.5 + most * 2 ** (precision + 1)) < 2 ** TORCH_BITS) precision += 1;
  return precision;
}

function along({ data, height, width, channels }, part, count, interpolation, bits) {
  const { first, weights, precision } = weightsOf(width, part, count, interpolation, bits);
  const [unit, half] = [2 ** precision, precision ? 2 ** (precision - 1) : 0];
  const made = new Uint8ClampedArray(height * count * channels);
  for (let row = 0; row < height; row++) {
    for (let i = 0; i < count; i++) {
      const own = weights[i];
      for (let c = 0; c < channels; c++) {
        let sum = half;
        let at = (row * width + first[i]) * channels + c;
        for (let k = 0; k < own.length; k++, at += channels) sum += own[k] * data[at];
        made[(row * count + i) * channels + c] = Math.floor(sum / unit);
      }
    }
  }
  return { data: made, height, width: count, channels };
}

function downwards({ data, height, width, channels }, part, count, interpolation, bits) {
  const { first, weights, precision } = weightsOf(height, part, count, interpolation, bits);
  const [unit, half] = [2 ** precision, precision ? 2 ** (precision - 1) : 0];
  const line = width * channels;
  const made = new Uint8ClampedArray(count * line);
  for (let i = 0; i < count; i++) {
    const own = weights[i];
    for (let x = 0; x < line; x++) {
      let sum = half;
      let at = first[i] * line + x;
      for (let k = 0; k < own.length; k++, at += line) sum += own[k] * data[at];
      made[i * line + x] = Math.floor(sum / unit);
    }
  }
  return { data: made, height: count, width, channels };
}
