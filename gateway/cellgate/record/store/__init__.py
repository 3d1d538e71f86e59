"""The stores of the record: ``interface`` is their contract; ``sqlite`` and others implement it."""
