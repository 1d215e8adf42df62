"""Signatures that one replica asks for, and the bundles that its host keeps."""
