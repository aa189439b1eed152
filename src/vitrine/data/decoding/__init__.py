"""From an encoded image to pixels, (H, W, C) uint8: header, limits, decoder, conversion."""
