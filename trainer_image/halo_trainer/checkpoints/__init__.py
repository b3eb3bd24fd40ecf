"""Checkpoints: everything needed to go on exactly, and the digest that proves it is whole."""
