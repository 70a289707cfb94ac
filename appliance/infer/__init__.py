"""Window to transcription: mel, encoder, decoder, guards, tokenizer."""
