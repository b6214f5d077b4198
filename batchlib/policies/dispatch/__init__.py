"""Dispatch policies and limits: is it time, how many, and who is given up?"""
