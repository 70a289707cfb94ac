"""Fits the recommendations of a bundle (confidence, endings, second pass) to its errors."""
