"""Does robust discovery help?"""
