// Jupyter's own widgets for the outputs' frame, as one classic script; the manager that uses them is the console's own.
// Of their styles those without colours: the frame has the colours.
import * as base from "@jupyter-widgets/base";
import { ManagerBase } from "@jupyter-widgets/base-manager";
import * as controls from "@jupyter-widgets/controls";
import panels from "@jupyter-widgets/controls/css/lumino.css";
import sliders from "@jupyter-widgets/controls/css/nouislider.css";
import styles from "@jupyter-widgets/controls/css/widgets-base.css";

window.JupyterWidgets = { base, controls, ManagerBase, styles: [panels, sliders, styles] };
