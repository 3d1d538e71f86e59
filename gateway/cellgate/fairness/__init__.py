"""What users share and each one's part of it: turns, places, amounts a minute."""
