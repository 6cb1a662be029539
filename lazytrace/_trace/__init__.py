"""The lines of a trace as bytes and as records; neither torch nor triton."""
