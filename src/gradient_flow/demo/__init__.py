"""`gradient-flow demo`: small models that train well or go wrong in a known way, watched, judged and reported."""
