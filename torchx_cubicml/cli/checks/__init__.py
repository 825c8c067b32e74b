"""Checks of ``torchx cubicml doctor``: functions by subject, each named in the table ``CHECKS`` of its module."""
