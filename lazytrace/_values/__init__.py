"""Reads values outside every capture, and judges and writes what was read."""
