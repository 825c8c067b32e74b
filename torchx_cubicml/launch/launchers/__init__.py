"""Launchers beside torchrun: one file per launcher says where its command names the program and its size."""
