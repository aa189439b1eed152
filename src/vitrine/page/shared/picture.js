// Pictures from files, the clipboard and the camera, and the region of one that the model sees.
import { $, notice } from "./dom.js";

// Longest side of the canvas; the server gets the file itself.
export const SHOWN_SIDE = 1000;

export async function openPicture(blob) {
  let bitmap = null;
  try {
    bitmap = await createImageBitmap(blob, { imageOrientation: "from-image" });
    const factor = SHOWN_SIDE / Math.max(bitmap.width, bitmap.height);
    if (factor < 1) {
      const small = await createImageBitmap(bitmap, {
        resizeWidth: Math.max(1, Math.round(bitmap.width * factor)),
        resizeHeight: Math.max(1, Math.round(bitmap.height * factor)),
        resizeQuality: "high",
      });
      bitmap.close();
      bitmap = small;
    }
  } catch {
    // The browser cannot show it (a TIFF, for example); the server may be able to read it.
  }
  return { blob, bitmap, height: bitmap?.height ?? 448, width: bitmap?.width ?? 448 };
}

// The region of a picture that the model sees, as fractions: the same rule as Preprocess in Python.
export function seenRegion({ rule, crop_fraction: crop, image_size: [rows, columns] }, { height, width }) {
  if (rule === "squash") return { top: (1 - crop) / 2, left: (1 - crop) / 2, height: crop, width: crop };
  const scale = Math.max(rows / crop / height, columns / crop / width);
  const part = { height: Math.min(1, rows / scale / height), width: Math.min(1, columns / scale / width) };
  return { top: (1 - part.height) / 2, left: (1 - part.width) / 2, ...part };
}

export function chooseFiles(input) {
  return new Promise((resolve) => {
    input.value = "";
    input.onchange = () => resolve([...input.files]);
    input.oncancel = () => resolve([]);
    input.click();
  });
}

export const picturesOf = (transfer) =>
  [...(transfer?.files ?? [])].filter((file) => file.type.startsWith("image/") || /\.(tiff?|avif|webp)$/i.test(file.name));

export async function takePicture() {
  const dialog = $("#camera");
  const video = $("#video");
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment", width: { ideal: 1280 } } });
  } catch (error) {
    const why = navigator.mediaDevices ? error.message : "it needs https or localhost";
    notice(`Cannot use the camera: ${why}.`);
    return null;
  }
  video.srcObject = stream;
  dialog.showModal();
  try {
    return await new Promise((resolve) => {
      $("#shoot").onclick = () => {
        const canvas = document.createElement("canvas");
        canvas.width = video.videoWidth;
        canvas.height = video.videoHeight;
        canvas.getContext("2d").drawImage(video, 0, 0);
        canvas.toBlob(resolve, "image/jpeg", 0.92);
      };
      $("#close-camera").onclick = () => resolve(null);
      dialog.oncancel = () => resolve(null);
    });
  } finally {
    for (const track of stream.getTracks()) track.stop();
    video.srcObject = null;
    dialog.close();
  }
}
