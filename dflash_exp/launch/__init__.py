"""How the processes of a run come to be: on this machine, and on a cluster."""
