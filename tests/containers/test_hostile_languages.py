"""Attacks from kernels of other languages than Python, in containers."""

from tests.gateway.kernels.test_hostile_languages import language, test_no_attack_succeeds
