"""The demonstration that ``python -m lazytrace demo`` runs."""
