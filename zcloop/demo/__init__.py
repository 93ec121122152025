"""``python -m zcloop demo``: one web page, one application, three event loops.

A parent process (supervisor.py) owns the listening socket and the folder of files, and
runs the application (worker.py, app.py) in a child on the loop that was chosen.  To
switch loops is to replace the child; connections wait in the socket's backlog meanwhile.
"""
