"""Load generator, protocol and statistics.  Modules that open connections import aiohttp; the others do not."""
