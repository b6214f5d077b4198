"""The way to a device and back, and a device to prove it on."""
