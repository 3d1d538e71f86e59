"""The wire of OpenSandbox: its own SDKs (opensandbox 1.1), LiteLLM's code interpreter, langchain-opensandbox.

There are two interfaces (https://github.com/alibaba/OpenSandbox, ``specs``). One makes sandboxes
(``control``), the other is a daemon in each of them, for code, commands and files. A client asks the first
one for the address of the second and for the headers that requests to it must have. A sandbox is a session.
"""
