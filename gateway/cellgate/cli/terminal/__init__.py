"""What is written on a terminal: a cell's output, tables, pictures, and the guard of the terminal's state."""
