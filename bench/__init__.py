"""What tracing costs: one script per question, run by ``python -m bench``."""
