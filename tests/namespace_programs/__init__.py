"""Programs that import the pack and Lightning in the orders that are met in the wild; each prints its facts as JSON.

``tests/test_namespaces.py`` runs each in a process of its own and says what the facts should be.
"""
