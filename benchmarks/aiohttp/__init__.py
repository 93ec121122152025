"""aiohttp servers compared: ``python -m benchmarks.aiohttp``."""
