"""`vitrine demo`: the main job once, small, on this machine."""
