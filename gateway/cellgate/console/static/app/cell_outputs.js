/**
 * What a cell shows, made of its events: a pure reducer.
 *
 * It follows Jupyter's rules: text of one stream is joined, `clear_output` may wait for the next output, an
 * update changes every display of its id. It draws nothing; `outputs/outputs.js` does. A list of outputs is never
 * changed: where something is new, the list is.
 *
 * @typedef {{kind: "stream", name: "stdout" | "stderr", text: string, beginning: string, left_out: number,
 *   end: string, open: boolean}} StreamOutput
 * @typedef {{kind: "display" | "result", data: Record<string, any>, metadata: Record<string, any>,
 *   display_id?: string}} DisplayOutput
 * @typedef {{kind: "error", ename: string, evalue: string, traceback: string[]}} ErrorOutput
 * @typedef {StreamOutput | DisplayOutput | ErrorOutput} Output
 * @typedef {{outputs: readonly Output[], clearing: boolean}} Shown
 */

/** @type {Shown} */
export const NOTHING = Object.freeze({ outputs: Object.freeze([]), clearing: false });

/** Characters of one stream that are kept; above that its beginning and its end. The record has them all. */
export const MOST_TEXT = 1_000_000;
const KEPT_BEGINNING = 200_000;
const KEPT_END = 500_000;
/** Characters of a line after which a terminal would have gone to another row. */
const ROW = 8192;

/**
 * The outputs after one event of the cell. Events that show nothing give the same value back.
 * @param {Shown} shown
 * @param {any} event
 * @returns {Shown}
 */
export function reduce(shown, event) {
  if (event.widget) return shown; // what an Output widget shows is not the cell's
  switch (event.type) {
    case "stream":
      return written(shown, event.name === "stderr" ? "stderr" : "stdout", String(event.text));
    case "display_data":
      return added(shown, display("display", event));
    case "execute_result":
      return added(shown, display("result", event));
    case "update_display_data":
      return updated(shown, event);
    case "error":
      return added(shown, {
        kind: "error",
        ename: String(event.ename),
        evalue: String(event.evalue),
        traceback: Array.isArray(event.traceback) ? event.traceback.map(String) : [],
      });
    case "clear_output":
      return event.wait ? { ...shown, clearing: true } : NOTHING;
    default:
      return shown;
  }
}

/**
 * The outputs with every display of the event's id replaced; the same value if there is none.
 * @param {Shown} shown
 * @param {{display_id?: string, data: any, metadata: any}} event
 * @returns {Shown}
 */
export function updated(shown, event) {
  const id = event.display_id;
  if (!id || !shown.outputs.some((output) => "display_id" in output && output.display_id === id)) return shown;
  const outputs = shown.outputs.map((output) =>
    "display_id" in output && output.display_id === id
      ? { ...output, data: event.data || {}, metadata: event.metadata || {} }
      : output,
  );
  return { ...shown, outputs };
}

/** Where a result has left out the middle of a long text. */
const CUT = /\n?\[cellgate: (\d{1,15}) characters, cut here; [^\]\n]{1,500}\]\n?/;

/**
 * The outputs of a result, which are nbformat's.
 * @param {any[]} outputs
 * @returns {Shown}
 */
export function ofResult(outputs) {
  let shown = NOTHING;
  for (const each of outputs) {
    const type = each.output_type;
    const event = type === "stream" ? { ...each, type, text: joined(each.text) } : { ...each, type };
    const cut = type === "stream" ? CUT.exec(event.text) : null;
    shown = cut ? added(shown, partly(event, cut)) : reduce(shown, event);
  }
  return shown;
}

/**
 * A stream of which a result has the beginning and the end.
 * @param {{name: string, text: string}} event
 * @param {RegExpExecArray} cut
 */
function partly({ name, text }, cut) {
  const beginning = text.slice(0, cut.index);
  const end = text.slice(cut.index + cut[0].length);
  const left_out = Math.max(1, Number(cut[1]) - beginning.length - end.length);
  return stream(name === "stderr" ? "stderr" : "stdout", beginning, left_out, end, false);
}

/** nbformat's multi-line strings. @param {unknown} text */
const joined = (text) => (Array.isArray(text) ? text.join("") : String(text));

/**
 * @param {"display" | "result"} kind
 * @param {any} event
 * @returns {DisplayOutput}
 */
function display(kind, event) {
  const made = { kind, data: event.data || {}, metadata: event.metadata || {} };
  return event.display_id ? { ...made, display_id: String(event.display_id) } : made;
}

/**
 * @param {Shown} shown
 * @param {Output} output
 * @returns {Shown}
 */
function added(shown, output) {
  return { outputs: shown.clearing ? [output] : [...shown.outputs, output], clearing: false };
}

/**
 * @param {Shown} shown
 * @param {"stdout" | "stderr"} name
 * @param {string} text
 * @returns {Shown}
 */
function written(shown, name, text) {
  const last = shown.clearing ? undefined : shown.outputs.at(-1);
  const joins = last?.kind === "stream" && last.name === name;
  const { beginning, left_out, end, open } = joins ? last : { beginning: "", left_out: 0, end: "", open: false };
  // Most text is only added, and what is there is not looked at: that would make one text of all its pieces each time.
  const plain = !open && !text.includes("\r") && !text.includes("\b");
  const next = stream(name, beginning, left_out, plain ? end + text : typed(end, text), text.endsWith("\r"));
  if (!joins) return added(shown, next);
  return { outputs: [...shown.outputs.slice(0, -1), next], clearing: false };
}

/**
 * The text of a stream; of a long one its beginning and its end. It is cut again only when as much has come, so
 * that a flood costs a copy of it once in a while and not with every piece.
 * @param {"stdout" | "stderr"} name
 * @param {string} beginning
 * @param {number} left_out
 * @param {string} end
 * @param {boolean} open Whether what comes next is written over the last line.
 * @returns {StreamOutput}
 */
function stream(name, beginning, left_out, end, open) {
  if (end.length > MOST_TEXT) {
    const first = left_out ? 0 : lineEnd(end, KEPT_BEGINNING);
    const last = lineEnd(end, end.length - KEPT_END);
    const kept = { beginning: left_out ? beginning : end.slice(0, first), end: end.slice(last) };
    return stream(name, kept.beginning, left_out + last - first, kept.end, open);
  }
  const mark = left_out ? `\n[${left_out.toLocaleString("en")} characters are not shown here]\n` : "";
  return { kind: "stream", name, text: beginning + mark + end, beginning, left_out, end, open };
}

/**
 * What a terminal shows of a text and more of it: a carriage return goes back to the beginning of the line, and a
 * backspace takes a character. Progress bars use both; kept as they are, a long run of one would be megabytes. Of a
 * long line only the last row is written over: else each piece would cost as much as the line has become.
 * @param {string} before
 * @param {string} text
 */
function typed(before, text) {
  const line = before.lastIndexOf("\n") + 1;
  const length = before.length - line - (before.endsWith("\r") ? 1 : 0);
  const start = line + Math.floor(length / ROW) * ROW;
  const lines = (before.slice(start) + text).split("\n");
  return before.slice(0, start) + lines.map((each, at) => afterReturns(each, at === lines.length - 1)).join("\n");
}

/**
 * One pass: what is printed may be made to be slow. A line with colours is not written over, but begun again.
 * @param {string} line
 * @param {boolean} last Whether more may come of it.
 */
function afterReturns(line, last) {
  let end = line.length;
  while (end && line[end - 1] === "\r") end -= 1;
  const whole = line.slice(0, end);
  const shown = /** @type {string[]} */ ([]);
  const colours = whole.includes("\x1b");
  let place = 0;
  for (const character of whole) {
    if (character === "\r") place = 0;
    else if (character === "\b") {
      const atEnd = place === shown.length;
      place = Math.max(0, place - 1);
      if (atEnd) shown.length = place;
    } else {
      if (colours && place === 0) shown.length = 0;
      shown[place] = character;
      place += 1;
    }
  }
  // A return at the end waits for what comes: the line stays until something is written over it.
  return shown.join("") + (last && end < line.length && shown.length ? "\r" : "");
}

/** The end of the line that is at a position, if it is near. @param {string} text @param {number} position */
function lineEnd(text, position) {
  const end = text.indexOf("\n", position);
  return end === -1 || end > position + 10_000 ? position : end;
}
