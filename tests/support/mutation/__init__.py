"""Systematic mutation: small changes of the product that nobody chose, and whether a test notices each."""
