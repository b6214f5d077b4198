"""Admission policies: may this request join?"""
