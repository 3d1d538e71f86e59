"""The container engine: its API, its events, containers, images, and removal of what former gateways left."""
