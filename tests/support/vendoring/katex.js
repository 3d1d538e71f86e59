// LaTeX for the outputs' frame, as a classic script. It is drawn as MathML, so neither its styles nor its fonts are here.
import katex from "katex";

window.katex = katex;
