// Plotly for the outputs' frame, as a classic script. The whole of it: figures that Python makes need traces of all
// kinds. A scatter plot of more than 1,000 points is one of WebGL, and maps, trees and surfaces are in no smaller bundle.
import Plotly from "plotly.js-dist-min";

window.Plotly = Plotly;
