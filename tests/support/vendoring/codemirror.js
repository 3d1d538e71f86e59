// The cells' editor. It is put into a shadow root: there its styles are constructed sheets, which a strict CSP allows.
import { HighlightStyle } from "@codemirror/language";
import { tags } from "@lezer/highlight";

export {
  Annotation,
  Compartment,
  EditorSelection,
  EditorState,
  Facet,
  Prec,
  StateEffect,
  StateField,
  Text,
  Transaction,
} from "@codemirror/state";
export {
  Decoration,
  EditorView,
  ViewPlugin,
  WidgetType,
  crosshairCursor,
  drawSelection,
  dropCursor,
  highlightActiveLine,
  highlightActiveLineGutter,
  highlightSpecialChars,
  hoverTooltip,
  keymap,
  lineNumbers,
  placeholder,
  rectangularSelection,
  showTooltip,
  tooltips,
} from "@codemirror/view";
export {
  defaultKeymap,
  deleteToLineStart,
  history,
  historyKeymap,
  indentLess,
  indentMore,
  indentWithTab,
  insertNewlineAndIndent,
  redo,
  standardKeymap,
  toggleComment,
  undo,
} from "@codemirror/commands";
export {
  HighlightStyle,
  StreamLanguage,
  bracketMatching,
  defaultHighlightStyle,
  foldGutter,
  foldKeymap,
  indentOnInput,
  indentUnit,
  syntaxHighlighting,
  syntaxTree,
} from "@codemirror/language";
export {
  acceptCompletion,
  autocompletion,
  closeBrackets,
  closeBracketsKeymap,
  closeCompletion,
  completionKeymap,
  completionStatus,
  startCompletion,
} from "@codemirror/autocomplete";
export { highlightSelectionMatches, openSearchPanel, search, searchKeymap } from "@codemirror/search";
export { python } from "@codemirror/lang-python";
export { javascript } from "@codemirror/lang-javascript";
export { tags };

/** Of colours on white, and on near black: all have a contrast of at least 4.5 : 1 there. */
const style = (colours) =>
  HighlightStyle.define([
    { tag: [tags.keyword, tags.modifier, tags.operatorKeyword, tags.self], color: colours.keyword },
    { tag: [tags.string, tags.special(tags.string), tags.regexp], color: colours.string },
    { tag: [tags.number, tags.bool, tags.null, tags.atom], color: colours.number },
    { tag: [tags.comment, tags.docComment], color: colours.comment, fontStyle: "italic" },
    { tag: [tags.function(tags.variableName), tags.function(tags.definition(tags.variableName))], color: colours.call },
    { tag: [tags.className, tags.definition(tags.className), tags.typeName], color: colours.type },
    { tag: [tags.meta, tags.annotation, tags.escape], color: colours.meta },
    { tag: tags.invalid, color: colours.invalid },
  ]);

export const lightHighlightStyle = style({
  keyword: "#7c2fa8",
  string: "#1a6b2f",
  number: "#8a4b00",
  comment: "#5f6670",
  call: "#0b57c4",
  type: "#006575",
  meta: "#6a4a9c",
  invalid: "#b3261e",
});

export const darkHighlightStyle = style({
  keyword: "#d2a8ff",
  string: "#8fd6a0",
  number: "#f2b880",
  comment: "#9aa4b2",
  call: "#8ab8ff",
  type: "#7fd4e0",
  meta: "#c3b1f5",
  invalid: "#ff9a92",
});
