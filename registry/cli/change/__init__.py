"""Changes as commands take them: manifests, sets, and addresses of sources."""
