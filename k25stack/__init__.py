"""From a bare 8-GPU host to a verified, speculation-accelerated Kimi-K2.5 endpoint, reproducibly."""

__version__ = "0.1.0"
