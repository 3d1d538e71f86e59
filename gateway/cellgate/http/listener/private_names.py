"""All private names of tornado that the gateway uses, each with its purpose: a release may change any.

A test compares them with the installed tornado, and with what the source uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PRIVATE_NAMES: Final[Mapping[str, str]] = {
    "http1connection.HTTP1Connection._expected_content_remaining": "a file was sent past tornado",
    "http1connection.HTTP1Connection._parse_headers": "too many headers are refused before they are parsed",
    "iostream.BaseIOStream._is_connreset": "errors of TLS close a connection and are not logged",
    "iostream.BaseIOStream._read_buffer_size": "what has been read of the next request or message",
    "iostream.SSLIOStream._do_ssl_handshake": "failed handshakes are counted and answered, and not logged",
    "iostream.SSLIOStream._finish_ssl_connect": "the end of that handshake",
    "iostream.SSLIOStream._handshake_reading": "that handshake waits for the client to send",
    "iostream.SSLIOStream._handshake_writing": "that handshake waits for the client to read",
    "iostream.SSLIOStream._ssl_accepting": "that handshake goes on; without it TLS has no end to announce",
    "tcpserver.TCPServer._handlers": "how the end of our own accepting is found by `stop`",
    "tcpserver.TCPServer._sockets": "which sockets `stop` closes",
    "util._websocket_mask": "pieces of a message are unmasked one by one",
    "web.RequestHandler._headers": "a program's head goes out as it is, without the gateway's own headers",
    "web.RequestHandler._headers_written": "whether an answer has begun: then a failure can be no answer",
    "web.RequestHandler._unimplemented_method": "which methods a resource has",
    "websocket.WebSocketProtocol._abort": "the end of a WebSocket whose client breaks the protocol",
    "websocket.WebSocketProtocol._run_callback": "a message is passed on, and its failures are logged",
    "websocket.WebSocketProtocol13._handle_message": "pings, pongs and closes stay tornado's",
    "websocket.WebSocketProtocol13._read_bytes": "frames are read through tornado's count of bytes",
    "websocket.WebSocketProtocol13._receive_frame": "frames are read in pieces, in several turns",
}
