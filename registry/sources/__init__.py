"""Sources of adapters: directories, hubs, object stores, web servers."""
