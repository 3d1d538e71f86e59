"""The pool of warm kernels and the line of those who wait for one."""
