"""A client's connection under TLS: with the same phases, times and counts as without TLS.

The handshake is a part of the first request's head: it counts among the connections from the first packet on,
and must be over in the head's time. Failed handshakes are logged nowhere, or anybody could fill the log; the
server counts them. Bytes are counted as the application sees them, before encryption.
"""

from __future__ import annotations

import socket
import ssl

from tornado.iostream import SSLIOStream

from cellgate.http.listener.streams import ClientStream, quietly, say

_PLAIN_HTTP = frozenset({"HTTP_REQUEST", "HTTPS_PROXY_REQUEST"})
"""OpenSSL's reasons for a handshake that begins with a request."""


class TlsStream(ClientStream, SSLIOStream):
    """A connection whose handshake is still to come. Private methods are tornado's: see `PRIVATE_NAMES`."""

    scheme = "https"
    _reset = False

    def _do_ssl_handshake(self) -> None:
        self._handshake_reading = False
        self._handshake_writing = False
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            self._handshake_reading = True
        except ssl.SSLWantWriteError:
            self._handshake_writing = True
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            self.close()
        except ssl.SSLError as error:
            self._owner.closed_by_us("tls_handshake")
            if error.reason in _PLAIN_HTTP:
                self._point_to_https()
            self.close()
        except (OSError, AttributeError):
            # AttributeError: the client had gone before the socket was wrapped.
            self.close()
        else:
            self._ssl_accepting = False
            self._finish_ssl_connect()

    def _point_to_https(self) -> None:
        """Answer a request without TLS, for people who forgot the `s` of `https`."""
        # Unread bytes would make closing a reset, and the answer would be lost.
        quietly(lambda: socket.socket.recv(self.socket, 65536, socket.MSG_DONTWAIT))
        detail = "This port is for HTTPS: the URL must begin with https://"
        say(self.socket, self._owner.refusal(400, "bad_request", detail))

    def _is_connreset(self, e: BaseException) -> bool:
        """Tornado's hook: errors on which it just closes. Otherwise it would log what is sent before TLS."""
        return isinstance(e, ssl.SSLError) or super()._is_connreset(e)

    def _send_last(self, words: bytes) -> None:
        quietly(lambda: self.socket.send(words))

    def _forget_unsent(self) -> None:
        self._reset = True
        super()._forget_unsent()

    def close_fd(self) -> None:
        """Tornado's hook. TLS announces an orderly end, so that nobody can cut an answer unnoticed."""
        if not (self._ssl_accepting or self._reset):
            quietly(self.socket.unwrap)
        super().close_fd()


def wrap(connection: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Return the accepted connection as a TLS socket. Raises OSError if the client has gone."""
    return context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
