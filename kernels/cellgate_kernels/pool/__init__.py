"""The pool of warm kernels and the line of claims for one."""
