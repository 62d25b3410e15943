# name, and what is done to the line that is marked with the name.
engine_without(tiny_regime FALSE)
engine_without(pauses DROP)
engine_without(takes_many DROP)
engine_without(prefetch_follower DROP)
engine_without(prefetch_end DROP)
engine_without(prefetch_tails DROP)
engine_without(turns FALSE)
