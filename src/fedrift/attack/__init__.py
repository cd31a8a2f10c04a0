"""What a curious server could learn from what it is sent."""
