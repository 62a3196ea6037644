"""bidroute: route LLM requests by shadow prices of batch slots and KV cache."""

__version__ = "0.1.0"
