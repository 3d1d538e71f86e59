// Markdown for the outputs' frame, as a classic script.
import MarkdownIt from "markdown-it";

window.MarkdownIt = MarkdownIt;
