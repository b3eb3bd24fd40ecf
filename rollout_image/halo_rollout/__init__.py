"""Serves a base and its adapters with vLLM's own OpenAI server."""
