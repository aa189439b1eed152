"""Dense prediction with plain ViTs: a ViT as the encoder, and a decoder on its tokens for masks or boxes."""
