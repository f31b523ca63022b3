"""What runs on a rank: plans in, results out; requests, pages, weights and copies as the rank sees them."""
