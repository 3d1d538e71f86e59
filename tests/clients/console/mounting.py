"""Outputs on the console's page without a notebook around them: what is under test is how they are drawn."""

from __future__ import annotations

from typing import Any

from tests.support.server import until

MOUNT = """
async ({ outputs, theme }) => {
  const at = (path) => new URL(`console/${path}`, document.baseURI).href;
  const { html, render } = await import(at("vendor/preact.js"));
  const { Outputs } = await import(at("outputs/outputs.js"));
  let place = document.getElementById("mounted");
  if (!place) {
    place = document.createElement("div");
    place.id = "mounted";
    const sized = "position: fixed; inset: 0; overflow: auto; z-index: 1000; padding: 8px;";
    place.style.cssText = `${sized} background: Canvas; color: CanvasText;`;
    document.body.append(place);
    window.grown = 0;
  }
  place.style.colorScheme = theme;
  render(html`<${Outputs} outputs=${outputs} theme=${theme} onGrow=${() => (window.grown += 1)} />`, place);
}
"""

SHOW = """
async ({ module, name, props }) => {
  const at = (path) => new URL(`console/${path}`, document.baseURI).href;
  const { html, render } = await import(at("vendor/preact.js"));
  const part = (await import(at(module)))[name];
  document.getElementById("mounted")?.remove();
  const place = document.createElement("div");
  place.id = "mounted";
  place.style.cssText = "position: fixed; inset: 0; overflow: auto; z-index: 1000; background: Canvas;";
  document.body.append(place);
  render(html`<${part} ...${props} />`, place);
}
"""


def mount(page: Any, *outputs: dict[str, Any], theme: str = "light") -> Any:
    """Draw these outputs of one cell over the page, in place of those before; returns where they are."""
    page.evaluate(MOUNT, {"outputs": list(outputs), "theme": theme})
    return page.locator("#mounted")


def show(page: Any, module: str, name: str, **props: Any) -> Any:
    """Draw a component that a module of the page exports; returns where it is."""
    page.evaluate(SHOW, {"module": module, "name": name, "props": props})
    return page.locator("#mounted")


def stream(text: str, name: str = "stdout") -> dict[str, Any]:
    """Text that a cell printed."""
    return {"kind": "stream", "name": name, "text": text}


def display(data: dict[str, Any], metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a cell displayed, by media type."""
    return {"kind": "display", "data": data, "metadata": metadata or {}}


def markup(text: str) -> dict[str, Any]:
    """HTML that a cell displayed."""
    return display({"text/html": text, "text/plain": "<HTML>"})


def wait_until(page: Any, expression: str, arg: Any = None) -> None:
    """Wait until an expression holds in the page, whose policy keeps Playwright from asking again there."""
    until(lambda: page.evaluate(expression, arg), otherwise=f"it never came about: {expression}")


def framed(page: Any, number: int = 0) -> Any:
    """The document of the output's frame of this number, once there is one."""
    return page.frame_locator("iframe.out-frame").nth(number)
