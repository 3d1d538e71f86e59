/**
 * Colours for the source of cells that have run: a small scanner, not a parser. Pure.
 *
 * A list shows hundreds of cells while it scrolls, which is too fast for an editor each. What it takes for a
 * keyword inside of an f-string is wrong at times; the editor, where code is written, has a real parser.
 */

/** @param {string} words */
const set = (words) => new Set(words.split(" "));

const PYTHON = set(
  "False None True and as assert async await break case class continue def del elif else except finally for from " +
    "global if import in is lambda match nonlocal not or pass raise return try while with yield",
);
const SCRIPT = set(
  "async await break case catch class const continue debugger default delete do else enum export extends false " +
    "finally for from function if implements import in instanceof interface let new null of return static super " +
    "switch this throw true try type typeof undefined var void while with yield",
);
const SHELL = set("case do done elif else esac export fi for function if in local return then until while");
const R = set("FALSE Inf NA NULL NaN TRUE break else for function if in next repeat return while library require");

const NUMBER = String.raw`\b(?:0[xob][\da-f_]+|\d[\d_]*(?:\.[\d_]*)?(?:e[+-]?\d+)?j?)\b`;
const NAME = String.raw`[\p{L}_$][\p{L}\p{N}_$]*`;
const QUOTED = String.raw`"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?`;
const LONG = String.raw`[rbuft]{0,2}(?:"""(?:\\.|[^\\])*?(?:"""|$(?![\s\S]))|'''(?:\\.|[^\\])*?(?:'''|$(?![\s\S])))`;

/** @param {string} comment @param {string} string @param {string} mark */
const scanner = (comment, string, mark) =>
  new RegExp(
    `(?<comment>${comment})|(?<string>${string})|(?<mark>${mark})|(?<number>${NUMBER})|(?<name>${NAME})`,
    "giu",
  );

const HASH = String.raw`#[^\n]*`;
const RULES = {
  python: {
    words: PYTHON,
    scan: scanner(HASH, `${LONG}|[rbuft]{0,2}(?:${QUOTED})`, String.raw`(?<=^|\n)[ \t]*(?:@[\w.]+|[%!][^\n]*)`),
  },
  script: {
    words: SCRIPT,
    scan: scanner(String.raw`\/\/[^\n]*|\/\*[^]*?(?:\*\/|$(?![\s\S]))`, `${QUOTED}|\`(?:\\\\.|[^\`\\\\])*\`?`, String.raw`@[\w.]+`),
  },
  shell: { words: SHELL, scan: scanner(String.raw`(?<=^|\s)#[^\n]*`, QUOTED, String.raw`\$\{?\w+\}?`) },
  r: { words: R, scan: scanner(HASH, QUOTED, String.raw`<-|%\w*%`) },
};

const LANGUAGES = new Map(
  Object.entries({
    python: RULES.python,
    javascript: RULES.script,
    typescript: RULES.script,
    bash: RULES.shell,
    r: RULES.r,
  }),
);

/** Longer source is shown without colours. */
const MOST = 20_000;

/**
 * Source in pieces, each with its kind: "comment", "string", "mark", "number", "word", or "" for the rest.
 * @param {string} source
 * @param {string} language
 * @returns {[kind: string, text: string][]}
 */
export function pieces(source, language) {
  const rules = LANGUAGES.get(language.toLowerCase());
  if (!rules || source.length > MOST) return [["", source]];
  const found = /** @type {[string, string][]} */ ([]);
  let plain = "";
  let end = 0;
  const close = () => {
    if (plain) found.push(["", plain]);
    plain = "";
  };
  for (const match of source.matchAll(rules.scan)) {
    plain += source.slice(end, match.index);
    end = match.index + match[0].length;
    const kinds = match.groups || {};
    const named = Object.keys(kinds).find((kind) => kinds[kind] !== undefined) || "";
    const kind = named === "name" ? (rules.words.has(match[0]) ? "word" : "") : named;
    if (!kind) {
      plain += match[0];
      continue;
    }
    close();
    found.push([kind, match[0]]);
  }
  plain += source.slice(end);
  close();
  return found;
}
