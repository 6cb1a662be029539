"""What a compiled kernel may do with its arguments, from its TTIR."""
