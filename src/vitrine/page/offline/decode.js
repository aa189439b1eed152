// From the bytes of an image file to upright pixels, as data/decoding/ makes them in Python.
// The browser unpacks the file; a large JPEG is then made smaller the way libjpeg does it, because Python decodes it at
// a half, a quarter or an eighth of its size. Pictures are { data, height, width, channels } with channels last.
import { plainImage } from "./file_parts.js";

const BLOCK = 8; // pixels of a JPEG's block
const CHANNELS = 3;
// How to undo an EXIF orientation: transpose, flip vertically, flip horizontally.
const TURNS = {
  2: [false, false, true], 3: [false, true, true], 4: [false, true, false], 5: [true, false, false],
  6: [true, false, true], 7: [true, true, true], 8: [true, true, false],
};

// enough: (height, width) that a JPEG, once smaller, must still cover.
export async function decode(bytes, enough) {
  const file = plainImage(bytes);
  let bitmap;
  try {
    const blob = new Blob([file.bytes], { type: file.type });
    bitmap = await createImageBitmap(blob, { premultiplyAlpha: "none", colorSpaceConversion: "none" });
  } catch {
    throw new Error("This browser cannot read the picture. Use an undamaged JPEG, PNG or WebP.");
  }
  let picture = pixelsOf(bitmap);
  bitmap.close();
  if (file.kind === "jpeg") picture = shrunk(picture, scaleFactor(picture, enough, file.orientation));
  return upright(picture, file.orientation);
}

// The pixels of a bitmap on white.
function pixelsOf(bitmap) {
  const { width, height } = bitmap;
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#ffffff";
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0);
  const rgba = context.getImageData(0, 0, width, height).data;
  const data = new Uint8ClampedArray(width * height * CHANNELS);
  for (let i = 0, j = 0; i < rgba.length; i += 4, j += CHANNELS) {
    data[j] = rgba[i];
    data[j + 1] = rgba[i + 1];
    data[j + 2] = rgba[i + 2];
  }
  return { data, height, width, channels: CHANNELS };
}

// The largest of 8, 4, 2 and 1 by which a picture may shrink and still cover `enough` once it is upright.
function scaleFactor({ height, width }, enough, orientation) {
  const [rows, columns] = orientation < 5 ? enough : [enough[1], enough[0]];
  return [8, 4, 2].find((f) => Math.floor(height / f) >= rows && Math.floor(width / f) >= columns) ?? 1;
}

// What libjpeg's smaller inverse transform makes of each block of 8 x 8: the coefficients of the lowest frequencies
// alone. As it is linear, so is the way from the 8 pixels of a line to its n pixels: a matrix (n x 8).
function blockMatrix(n) {
  const matrix = new Float64Array(n * BLOCK);
  for (let y = 0; y < n; y++) {
    for (let x = 0; x < BLOCK; x++) {
      let sum = 1;
      for (let u = 1; u < n; u++) {
        sum += 2 * Math.cos(((2 * y + 1) * u * Math.PI) / (2 * n)) * Math.cos(((2 * x + 1) * u * Math.PI) / (2 * BLOCK));
      }
      matrix[y * BLOCK + x] = sum / BLOCK;
    }
  }
  return matrix;
}

export function shrunk(picture, factor) {
  if (factor === 1) return picture;
  const { data, height, width, channels } = picture;
  const n = BLOCK / factor;
  const matrix = blockMatrix(n);
  const [rows, columns] = [Math.ceil(height / factor), Math.ceil(width / factor)];
  const made = new Uint8ClampedArray(rows * columns * channels);
  const wide = columns * channels;
  const lines = new Float64Array(BLOCK * wide); // a row of blocks, each line already short
  for (let top = 0, to = 0; top < height; top += BLOCK, to += n) {
    for (let y = 0; y < BLOCK; y++) {
      const row = Math.min(top + y, height - 1) * width; // the last line again where the block is cut off
      for (let column = 0; column < columns; column++) {
        const start = Math.floor(column / n) * BLOCK;
        const weights = (column % n) * BLOCK;
        for (let c = 0; c < channels; c++) {
          let sum = 0;
          for (let x = 0; x < BLOCK; x++) {
            sum += matrix[weights + x] * data[(row + Math.min(start + x, width - 1)) * channels + c];
          }
          lines[y * wide + column * channels + c] = sum;
        }
      }
    }
    for (let y = 0; y < n && to + y < rows; y++) {
      for (let i = 0; i < wide; i++) {
        let sum = 0;
        for (let x = 0; x < BLOCK; x++) sum += matrix[y * BLOCK + x] * lines[x * wide + i];
        made[(to + y) * wide + i] = sum; // a clamped array rounds and keeps 0 to 255
      }
    }
  }
  return { data: made, height: rows, width: columns, channels };
}

export function upright(picture, orientation) {
  const turn = TURNS[orientation];
  if (!turn) return picture;
  const [isTransposed, isFlipped, isMirrored] = turn;
  const { data, height, width, channels } = picture;
  const [rows, columns] = isTransposed ? [width, height] : [height, width];
  const made = new Uint8ClampedArray(data.length);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const r = isFlipped ? rows - 1 - row : row;
      const c = isMirrored ? columns - 1 - column : column;
      const from = (isTransposed ? c * width + r : r * width + c) * channels;
      const to = (row * columns + column) * channels;
      for (let k = 0; k < channels; k++) made[to + k] = data[from + k];
    }
  }
  return { data: made, height: rows, width: columns, channels };
}
