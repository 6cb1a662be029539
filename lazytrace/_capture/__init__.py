"""What happens on the host while the program launches and captures: no device work, no file."""
