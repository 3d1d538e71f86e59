"""The wire of E2B's SDKs (e2b 2.6x, e2b-code-interpreter 2.1x), all of it under one prefix.

There they speak with two servers: a control plane that makes sandboxes (``control``), and each sandbox's own
(``cells``, ``files``), which header fields name here. A sandbox is a session.
"""
