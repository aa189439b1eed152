"""Plain ViTs that answer for every pixel: a ViT as the encoder, and a decoder on its tokens."""
