"""Waits, wakes and delivers for asyncio, trio and threads. Decides nothing: that is the core's."""
