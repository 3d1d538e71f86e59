"""What goes over the wire: request bodies, queries, answers, events and problems, as structs.

Nothing here acts.
"""
