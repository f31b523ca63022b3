"""Who holds what, who computes what, who sends what to whom: pure functions of layouts."""
