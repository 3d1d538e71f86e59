"""What goes over the wire: request bodies, limits, errors and their HTTP statuses. Nothing here acts."""
