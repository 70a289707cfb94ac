"""Fits the confidence of a bundle's texts to recordings that the user names."""
