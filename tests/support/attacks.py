"""Cells that make their kernel send the worst possible messages: for ``hostile``, and for tests.

A cell has its kernel's key, sockets and file descriptors, so it can sign, forge and cut off any message. Each
attack is Python code for ipykernel. Those in ATTACKS run for `SECONDS` and end by themselves; UNFINISHED
breaks the channels of its own kernel, whose cell then never ends. HONEST are not attacks, but cells that use
as much of a processor as they may, for comparison.
"""

from __future__ import annotations

SECONDS = 4.0

_PRELUDE = """
import os, socket, time
kernel = get_ipython().kernel
parent = kernel.get_parent()
session = kernel.session
iopub, stdin = kernel.iopub_thread, kernel.stdin_socket
identity = kernel._parent_ident["shell"] if isinstance(kernel._parent_ident, dict) else kernel._parent_ident

def frames(msg_type, content, *, of=parent, buffers=()):
    of = session.pack(of.get("header", {}))
    parts = [session.pack(session.msg_header(msg_type)), of, b"{}", content]
    return [b"<IDS|MSG>", session.sign(parts), *parts, *buffers]

def publish(msg_type, content, **options):
    iopub.send_multipart([b"topic", *frames(msg_type, content, **options)])

def until_the_end(pause=0.0):
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        yield
        time.sleep(pause)
"""

_LISTS = 'b"[" + b"[]," * 9_000_000 + b"[]]"'

ATTACKS = {
    "status of 28 MB of empty lists": f"""
content = b'{{"execution_state":"busy","more":' + {_LISTS} + b"}}"
for _ in until_the_end(0.1):
    publish("status", content)
""",
    "display of 21 MB of empty lists": f"""
content = b'{{"metadata":{{}},"data":{{"application/json":' + {_LISTS}[:21_000_000] + b"[]]}}}}"
for _ in until_the_end(0.1):
    publish("display_data", content)
""",
    "displays of as many elements as may be": """
content = b'{"metadata":{},"data":{"application/json":[' + b"[]," * 240_000 + b"[]]}}"
for _ in until_the_end(0.02):
    publish("display_data", content)
""",
    "displays just not too large for the loop": """
content = b'{"metadata":{},"data":{"application/json":[' + b"{}," * 4_900 + b'"' + b"x" * 240_000 + b'"]}}'
for _ in until_the_end(0.001):
    publish("display_data", content)
""",
    "one text of 40 MB": r"""
content = b'{"name":"stdout","text":"' + b"\\n" * 20_000_000 + b'"}'
for _ in until_the_end(0.1):
    publish("stream", content)
""",
    "bytes that are no text": r"""
content = b'{"name":"stdout","text":"' + b"\xff" * 9_000_000 + b'"}'
for _ in until_the_end(0.1):
    publish("stream", content)
""",
    "tiny outputs without end": """
for _ in until_the_end():
    for _ in range(100):
        publish("stream", b'{"name":"stdout","text":"x"}')
""",
    "cleared outputs without end": """
for _ in until_the_end():
    for _ in range(100):
        publish("clear_output", b'{"wait":false}')
        publish("update_display_data", b'{"data":{},"metadata":{},"transient":{"display_id":"d"}}')
""",
    "widgets without end": """
for number, _ in enumerate(until_the_end()):
    for part in range(50):
        state = b'{"comm_id":"%d-%d","target_name":"jupyter.widget","data":{"state":{}}}' % (number, part)
        publish("comm_open", state)
        publish("comm_open", state, of={"header": {"msg_id": "x", "msg_type": "comm_msg"}})
""",
    "forged questions without end": """
for _ in until_the_end():
    for _ in range(50):
        stdin.send_multipart([identity, *frames("input_request", b'{"prompt":"?","password":false}')])
""",
    "forged replies and states": """
count = b'{"status":5,"execution_count":9223372036854775808}'
forged = [b"{}", count, b'{"status":"error","traceback":[[]]}']
for _ in until_the_end():
    for content in forged:
        for of in (parent, {}, {"header": {"msg_id": "nobody's"}}):
            publish("execute_reply", content, of=of)
            publish("execute_input", content, of=of)
            publish("error", content, of=of)
            publish("status", b'{"execution_state":"idle"}', of={"header": {"msg_id": "nobody's"}})
""",
    "ten thousand buffers": """
for _ in until_the_end(0.01):
    publish("display_data", b'{"data":{},"metadata":{}}', buffers=[b""] * 9_990)
""",
}

HONEST = {
    "a loop": """
end = time.monotonic() + SECONDS
while time.monotonic() < end:
    pass
""",
    "work on large arrays": """
import hashlib
array = bytes(1 << 22)
for _ in until_the_end():
    hashlib.sha256(array).digest()
""",
    "a thousand lines a second": """
for number, _ in enumerate(until_the_end(0.001)):
    print("line", number)
""",
}

UNFINISHED = """
import os, socket, time
for name in os.listdir("/proc/self/fd"):
    try:
        duplicate = socket.socket(fileno=os.dup(int(name)))
    except OSError:
        continue
    try:
        address = duplicate.getsockname()
        duplicate.getpeername()
    except OSError:
        continue
    if isinstance(address, str) and address.rpartition("/")[2].startswith("k-"):
        try:
            duplicate.setblocking(True)
            duplicate.sendall(b"\\2" + (LENGTH).to_bytes(8, "big") + bytes(SENT))
        except OSError:
            pass
time.sleep(3600)
"""
"""Announces a frame of LENGTH bytes on each channel of its kernel and sends SENT bytes of it."""


def attack(name: str, seconds: float = SECONDS) -> str:
    """The code of this cell of ATTACKS or HONEST."""
    return f"SECONDS = {seconds}\n{_PRELUDE}\n{(ATTACKS | HONEST)[name]}"


def unfinished(length: int, sent: int) -> str:
    """A cell that announces `length` bytes on each channel of its kernel and sends `sent` of them."""
    return UNFINISHED.replace("LENGTH", str(length)).replace("SENT", str(sent))
