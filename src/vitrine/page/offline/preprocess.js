// From a picture's bytes to the model's input: the record of preprocess.json, as data/preparing/preprocess.py reads it.
import { decode } from "./decode.js";
import { resizeAndCrop } from "./resize.js";

// A scaled JPEG keeps at least this many times the pixels that the resize needs in each direction.
const SCALED_DECODE_GAP = 2;

export const resizeSize = ({ size, crop_fraction: crop }) => size.map((side) => Math.floor(side / crop + 1e-6));

// Returns the cropped picture { data, height, width, channels }, bytes with channels last.
export async function pixels(bytes, preprocess) {
  const decoded = await decode(bytes, resizeSize(preprocess).map((side) => SCALED_DECODE_GAP * side));
  const picture = preprocess.mean.length === 1 ? grey(decoded) : decoded;
  const [rows, columns] = targetSize(picture, resizeSize(preprocess), preprocess.rule);
  const [height, width] = preprocess.size;
  const box = [halfEven(rows - height), halfEven(columns - width), height, width];
  return resizeAndCrop(picture, [rows, columns], box, preprocess.interpolation);
}

// The size to resize to: exactly `size`, or covering it with the same aspect ratio.
export function targetSize({ height, width }, [rows, columns], rule) {
  if (rule === "squash") return [rows, columns];
  if (height * columns <= width * rows) return [rows, Math.max(columns, Math.trunc((rows * width) / height))];
  return [Math.max(rows, Math.trunc((columns * height) / width)), columns];
}

// Half of a whole number, rounded to the even neighbour as Python does.
function halfEven(count) {
  const low = Math.floor(count / 2);
  return count % 2 === 0 ? low : low + (low % 2);
}

// ITU-R 601 luma in the whole numbers of Pillow.
function grey({ data, height, width, channels }) {
  const made = new Uint8ClampedArray(height * width);
  for (let i = 0, j = 0; i < made.length; i++, j += channels) {
    made[i] = (data[j] * 19595 + data[j + 1] * 38470 + data[j + 2] * 7471 + 0x8000) >> 16;
  }
  return { data: made, height, width, channels: 1 };
}

// The model's input (channels, height, width), in fp32 as torch computes it.
export function normalised({ data, height, width, channels }, { mean, std }) {
  const made = new Float32Array(height * width * channels);
  for (let c = 0; c < channels; c++) {
    const centre = Math.fround(Math.fround(mean[c]) * 255);
    const spread = Math.fround(Math.fround(std[c]) * 255);
    for (let i = 0; i < height * width; i++) {
      made[c * height * width + i] = Math.fround(data[i * channels + c] - centre) / spread;
    }
  }
  return made;
}
