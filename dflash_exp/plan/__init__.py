"""Which sequences train together, and when: whole numbers only.

Read in the order of flow: sequences, seeds, buckets, batches, interleave, align, epoch, cost, run_length, diagnosis.
Lengths come in, an epoch comes out as arrays. Nothing here knows torch, files, clocks or a global random state,
so the same lengths, settings and seeds give the same epoch everywhere; a million sequences take about 0.05 s.
"""
