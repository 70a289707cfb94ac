"""Sound in: microphone or recording to frames, frames to windows."""
