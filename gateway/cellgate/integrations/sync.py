"""The blocking facades of the tools. What each has, with its types, is in ``sync.pyi``, as in ``client``."""

from cellgate.client.blocking import Owning


class SyncSessionTools(Owning):
    """`SessionTools` whose methods block; made by `SessionTools.sync`."""


class SyncOpenAITools(SyncSessionTools):
    """`OpenAITools` whose methods block; made by `OpenAITools.sync`."""


class SyncAnthropicTools(SyncSessionTools):
    """`AnthropicTools` whose methods block; made by `AnthropicTools.sync`."""
