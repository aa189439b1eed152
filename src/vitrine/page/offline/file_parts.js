// An image file without its colour profiles and its EXIF, and the orientation that the EXIF names.
// Browsers convert colours by the profile and turn the picture; Vitrine's training does the first never and the second
// by itself. So the parts that would make a browser do either are taken out before it decodes.
const ORIENTATION_TAG = 0x0112;
const LONG = 4;
const PNG_PARTS = new Set(["iCCP", "sRGB", "gAMA", "cHRM", "cICP", "mDCV", "cLLI", "eXIf"]);
const WEBP_PARTS = new Set(["ICCP", "EXIF", "XMP "]);
const WEBP_FLAGS = 0x20 | 0x08 | 0x04; // of profile, EXIF and XMP in the VP8X part

// bytes: a Uint8Array. Returns { kind, type, bytes, orientation }.
export function plainImage(bytes) {
  if (startsWith(bytes, [0xff, 0xd8, 0xff])) return { kind: "jpeg", type: "image/jpeg", ...plainJpeg(bytes) };
  if (startsWith(bytes, [0x89, 0x50, 0x4e, 0x47])) return { kind: "png", type: "image/png", ...plainPng(bytes) };
  if (text(bytes, 0, 4) === "RIFF" && text(bytes, 8, 12) === "WEBP") return { kind: "webp", type: "image/webp", ...plainWebp(bytes) };
  return { kind: "other", type: "", bytes, orientation: 1 };
}

function plainJpeg(bytes) {
  const kept = [bytes.subarray(0, 2)];
  let orientation = 1;
  let at = 2;
  while (at + 4 <= bytes.length && bytes[at] === 0xff) {
    const marker = bytes[at + 1];
    if (marker === 0xff) {
      at += 1;
      continue;
    }
    if (marker === 0xda) break; // the picture itself begins
    const end = at + 2 + ((bytes[at + 2] << 8) | bytes[at + 3]);
    const isExif = marker === 0xe1 && text(bytes, at + 4, at + 8) === "Exif";
    if (isExif) orientation = orientationIn(bytes.subarray(at + 10, end));
    const isProfile = marker === 0xe2 && text(bytes, at + 4, at + 15) === "ICC_PROFILE";
    if (!isExif && !isProfile) kept.push(bytes.subarray(at, end));
    at = end;
  }
  kept.push(bytes.subarray(at));
  return { bytes: joined(kept), orientation };
}

function plainPng(bytes) {
  const kept = [bytes.subarray(0, 8)];
  const view = viewOf(bytes);
  let orientation = 1;
  let at = 8;
  while (at + 12 <= bytes.length) {
    const end = at + 12 + view.getUint32(at);
    const name = text(bytes, at + 4, at + 8);
    if (name === "eXIf") orientation = orientationIn(bytes.subarray(at + 8, end - 4));
    if (!PNG_PARTS.has(name)) kept.push(bytes.subarray(at, end));
    at = end;
  }
  return { bytes: joined(kept), orientation };
}

function plainWebp(bytes) {
  const kept = [bytes.slice(0, 12)];
  const view = viewOf(bytes);
  let orientation = 1;
  let at = 12;
  while (at + 8 <= bytes.length) {
    const size = view.getUint32(at + 4, true);
    const end = at + 8 + size + (size % 2);
    const name = text(bytes, at, at + 4);
    if (name === "EXIF") {
      const hasPrefix = text(bytes, at + 8, at + 12) === "Exif";
      orientation = orientationIn(bytes.subarray(at + (hasPrefix ? 14 : 8), end));
    }
    if (!WEBP_PARTS.has(name)) {
      const part = bytes.slice(at, end);
      if (name === "VP8X") part[8] &= ~WEBP_FLAGS;
      kept.push(part);
    }
    at = end;
  }
  const whole = joined(kept);
  viewOf(whole).setUint32(4, whole.length - 8, true);
  return { bytes: whole, orientation };
}

// The orientation in a block of TIFF, as EXIF is; 1 where it is damaged or absent.
function orientationIn(tiff) {
  const order = text(tiff, 0, 2);
  if (order !== "II" && order !== "MM") return 1;
  const isLittle = order === "II";
  const view = viewOf(tiff);
  try {
    const start = view.getUint32(4, isLittle);
    const count = view.getUint16(start, isLittle);
    for (let number = 0; number < count; number++) {
      const entry = start + 2 + 12 * number;
      if (view.getUint16(entry, isLittle) !== ORIENTATION_TAG) continue;
      const isLong = view.getUint16(entry + 2, isLittle) === LONG;
      const value = isLong ? view.getUint32(entry + 8, isLittle) : view.getUint16(entry + 8, isLittle);
      return value >= 1 && value <= 8 ? value : 1;
    }
  } catch (error) {
    if (!(error instanceof RangeError)) throw error; // the block ends too early
  }
  return 1;
}

const startsWith = (bytes, start) => start.every((value, i) => bytes[i] === value);
const text = (bytes, from, to) => String.fromCharCode(...bytes.subarray(from, to));
const viewOf = (bytes) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);

function joined(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
