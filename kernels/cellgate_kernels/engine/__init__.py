"""The container engine: its API, events, containers and images, and removal of former gateways' leftovers."""
