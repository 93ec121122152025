"""The servers under test: ordinary asyncio programs, the same on every loop."""
