/**
 * Taking an output out of the page: as a file, or on the clipboard.
 */

/**
 * @param {string} name
 * @param {string} type
 * @param {BlobPart} content
 */
export function save(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  // The browser has begun to read it by then.
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/**
 * Whether it was copied. Without a secure context there is only the old way.
 * @param {string} text
 */
export async function copyText(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // Refused: perhaps the page has not the focus.
    }
  }
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "out-unseen";
  document.body.append(area);
  const focused = /** @type {HTMLElement | null} */ (document.activeElement);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  focused?.focus();
  return done;
}

/** Whether a picture was copied; browsers take PNG only. @param {Blob} blob */
export async function copyPicture(blob) {
  try {
    await navigator.clipboard.write([new ClipboardItem({ [blob.type]: blob })]);
    return true;
  } catch {
    return false;
  }
}

/** @param {string} base64 */
export function fromBase64(base64) {
  const binary = atob(base64.replace(/\s+/g, ""));
  const data = new Uint8Array(binary.length);
  for (let index = 0; index < binary.length; index += 1) data[index] = binary.charCodeAt(index);
  return data;
}
