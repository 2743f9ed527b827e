"""Do metrics of measurement tell right from wrong?"""
