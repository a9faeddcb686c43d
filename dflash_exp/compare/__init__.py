"""What shows how orders and runs differ: figures from plain arrays and the files that a plan or a run leaves."""
