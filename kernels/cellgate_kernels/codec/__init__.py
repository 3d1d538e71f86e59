"""Conversion between bytes and values: JSON within limits, HTML in outputs, words for what does not fit."""
