"""Header fields of HTTP that are for one connection alone, which whoever passes a message on leaves out.

What a Connection field names besides is left out, too (RFC 9110, section 7.6.1); ``egress`` and ``ports`` do
both.
"""

OF_THE_CONNECTION = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
