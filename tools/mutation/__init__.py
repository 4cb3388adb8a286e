"""``make mutate``: do the tests notice when a line of Quire is wrong?"""
