"""Ordering policies: who is served first?"""
