# name, and what is done to the line that is marked with the name.
engine_without(tiny_regime FALSE)
engine_without(takes_many DROP)
engine_without(prefetch_tails DROP)
engine_without(keeps_successor TRUE)
engine_without(spins TRUE)
engine_without(spins_beside DROP)
engine_without(sends_away DROP)
engine_without(sorts_many TRUE)
