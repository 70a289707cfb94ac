"""Store first, then broker and journal."""
