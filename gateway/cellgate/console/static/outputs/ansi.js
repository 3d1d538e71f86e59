/**
 * Text as a terminal shows it: colours, carriage returns, backspaces, and the moves of progress bars. Pure.
 *
 * It is no terminal: it has no size and does not scroll, and of the sequences that move the cursor it knows those that
 * programs print to write over their own last lines. It makes rows of runs; `text.js` draws them. What a text can
 * make it do is limited: a row is at most as long as the text and `MOST_PADDING` characters, and what costs more than
 * its own length, `MOST_ERASED`.
 *
 * @typedef {{fg?: string, bg?: string, bold?: boolean, dim?: boolean, italic?: boolean, underline?: boolean,
 *   inverse?: boolean, strike?: boolean}} Style
 * @typedef {{text: string, style: Style | null}} Run
 */

const PIECES =
  /\x1b\[([\d;:?<=>]*)[ -\/]*([@-~])|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -\/]+[0-~]|\x1b[0-Z\\^-~]|\x1b|([\r\n\b])|[^\x1b\r\n\b]+/g;
const UNSEEN = /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]/g;
const MOST_PADDING = 20_000;
/** Characters that are erased before others of their row, of one text. */
const MOST_ERASED = 1_000_000;
const FARTHEST = 1000;

const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

class Row {
  constructor() {
    /** @type {Run[]} */
    this.runs = [];
    this.length = 0;
    /** The characters one by one, once something was written over. @type {{at: string[], styles: (Style | null)[]} | null} */
    this.cells = null;
  }

  /** @param {number} column @param {string} text @param {Style | null} style */
  write(column, text, style) {
    if (this.cells === null && column === this.length) {
      const last = this.runs.at(-1);
      if (last && last.style === style) last.text += text;
      else this.runs.push({ text, style });
    } else {
      const cells = this.opened();
      for (let index = 0; index < text.length; index += 1) {
        cells.at[column + index] = text[index];
        cells.styles[column + index] = style;
      }
    }
    this.length = Math.max(this.length, column + text.length);
  }

  opened() {
    if (this.cells === null) {
      this.cells = { at: [], styles: [] };
      for (const { text, style } of this.runs)
        for (let index = 0; index < text.length; index += 1) {
          this.cells.at.push(text[index]);
          this.cells.styles.push(style);
        }
    }
    return this.cells;
  }

  /** @param {number} from @param {number} to */
  erase(from, to) {
    if (from >= this.length) return;
    if (from === 0 && to >= this.length) {
      this.runs = [];
      this.cells = null;
      this.length = 0;
    } else if (to >= this.length) {
      const cells = this.opened();
      cells.at.length = cells.styles.length = this.length = from;
    } else this.write(from, " ".repeat(to - from), null);
  }

  /** @returns {Run[]} */
  done() {
    if (this.cells === null) return this.runs;
    const { at, styles } = this.cells;
    const runs = /** @type {Run[]} */ ([]);
    let start = 0;
    for (let index = 1; index <= at.length; index += 1)
      if (index === at.length || styles[index] !== styles[start]) {
        runs.push({ text: at.slice(start, index).join(""), style: styles[start] });
        start = index;
      }
    return runs;
  }
}

/**
 * The rows of a text.
 * @param {string} text
 * @returns {Run[][]}
 */
export function rows(text) {
  const screen = [new Row()];
  let row = 0;
  let column = 0;
  let style = /** @type {Style | null} */ (null);
  let padding = MOST_PADDING;
  let erased = 0;

  /** @param {string} written */
  function write(written) {
    const line = screen[row];
    if (column > line.length) {
      const missing = column - line.length;
      if (missing > padding) column = line.length;
      else {
        padding -= missing;
        line.write(line.length, " ".repeat(missing), null);
      }
    }
    line.write(column, written, style);
    column += written.length;
  }

  function down(count = 1) {
    row += count;
    while (row >= screen.length) screen.push(new Row());
  }

  /** @param {string} given @param {string} final */
  function control(given, final) {
    const number = Math.min(Number.parseInt(given, 10) || 0, FARTHEST);
    const step = number || 1;
    switch (final) {
      case "m":
        style = styled(style, given);
        break;
      case "A":
        row = Math.max(0, row - step);
        break;
      case "B":
        for (let left = step; left && row + 1 < screen.length; left -= 1) row += 1;
        break;
      case "C":
        column += step;
        break;
      case "D":
        column = Math.max(0, column - step);
        break;
      case "E":
        down();
        column = 0;
        break;
      case "F":
        row = Math.max(0, row - step);
        column = 0;
        break;
      case "G":
        column = step - 1;
        break;
      case "K":
        if (number === 1 && (erased += column + 1) > MOST_ERASED) break;
        screen[row].erase(number === 0 ? column : 0, number === 1 ? column + 1 : Infinity);
        break;
      case "J":
        if (number >= 2) {
          screen.length = 0;
          screen.push(new Row());
          row = column = 0;
        } else if (number === 0) {
          screen[row].erase(column, Infinity);
          screen.length = row + 1;
        }
        break;
    }
  }

  for (const [piece, given, final, single] of text.matchAll(PIECES)) {
    if (final !== undefined) control(given, final);
    else if (single === "\n") {
      down();
      column = 0;
    } else if (single === "\r") column = 0;
    else if (single === "\b") column = Math.max(0, column - 1);
    else if (piece[0] !== "\x1b") write(piece.replace(UNSEEN, ""));
  }
  return screen.map((each) => each.done());
}

/**
 * The style after a sequence of codes. The same object for the same style, while it lasts.
 * @param {Style | null} before
 * @param {string} given
 * @returns {Style | null}
 */
function styled(before, given) {
  const codes = given.split(/[;:]/, 32).map((code) => Number(code) || 0);
  let style = { ...before };
  for (let index = 0; index < codes.length; index += 1) {
    const code = codes[index];
    if (code === 0) style = {};
    else if (code === 1) style.bold = true;
    else if (code === 2) style.dim = true;
    else if (code === 3) style.italic = true;
    else if (code === 4) style.underline = true;
    else if (code === 7) style.inverse = true;
    else if (code === 9) style.strike = true;
    else if (code === 22) delete style.bold, delete style.dim;
    else if (code === 23) delete style.italic;
    else if (code === 24) delete style.underline;
    else if (code === 27) delete style.inverse;
    else if (code === 29) delete style.strike;
    else if (code >= 30 && code <= 37) style.fg = NAMES[code - 30];
    else if (code === 39) delete style.fg;
    else if (code >= 40 && code <= 47) style.bg = NAMES[code - 40];
    else if (code === 49) delete style.bg;
    else if (code >= 90 && code <= 97) style.fg = `bright-${NAMES[code - 90]}`;
    else if (code >= 100 && code <= 107) style.bg = `bright-${NAMES[code - 100]}`;
    else if (code === 38 || code === 48) {
      const { colour, used } = chosen(codes, index + 1);
      if (colour) style[code === 38 ? "fg" : "bg"] = colour;
      index += used;
    }
  }
  return Object.keys(style).length ? style : null;
}

/**
 * A colour of 256, or of all: a name or "#rrggbb".
 * @param {number[]} codes
 * @param {number} index
 * @returns {{colour: string | null, used: number}}
 */
function chosen(codes, index) {
  const byte = (/** @type {number} */ value) => Math.min(255, value || 0);
  if (codes[index] === 2) return { colour: hex(codes.slice(index + 1, index + 4).map(byte)), used: 4 };
  if (codes[index] !== 5) return { colour: null, used: 1 };
  const number = byte(codes[index + 1]);
  if (number < 16) return { colour: `${number < 8 ? "" : "bright-"}${NAMES[number % 8]}`, used: 2 };
  if (number >= 232) {
    const grey = 8 + 10 * (number - 232);
    return { colour: hex([grey, grey, grey]), used: 2 };
  }
  const level = (/** @type {number} */ value) => (value ? 55 + 40 * value : 0);
  const cube = number - 16;
  return { colour: hex([Math.floor(cube / 36), Math.floor(cube / 6) % 6, cube % 6].map(level)), used: 2 };
}

/** @param {number[]} parts */
const hex = (parts) => `#${[0, 1, 2].map((at) => (parts[at] || 0).toString(16).padStart(2, "0")).join("")}`;

/** A text without its sequences, as it is copied and saved. @param {string} text */
export const plain = (text) => text.replace(PIECES, (piece) => (piece[0] === "\x1b" ? "" : piece));
