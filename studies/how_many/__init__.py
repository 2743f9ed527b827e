"""How many circuits does a task need?"""
