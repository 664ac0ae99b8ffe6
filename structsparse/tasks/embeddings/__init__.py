"""Word vectors by structured sparse coding: a code for each word reconstructs its associations with contexts.

Penalties on the codes order their dimensions, for example in trees from coarse to fine."""
