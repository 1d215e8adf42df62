"""Where adapters come from: directories of this host, hubs, object stores and web servers."""
