"""The graphs and texts that Hailo's Dataflow Compiler takes."""
