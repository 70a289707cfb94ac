"""The other side of the parity tests: transformers' eager Whisper in fp32, on the CPU.

Imported only where torch and transformers are installed.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import WhisperConfig as ReferenceConfig, WhisperForConditionalGeneration
from transformers.modeling_outputs import BaseModelOutput

from appliance.convert.shapes import WhisperConfig
from appliance.convert.tensors import Weights


@dataclass(frozen=True, slots=True)
class Reference:
    """transformers' Whisper holding the given weights, its position table cut to the window."""

    model: WhisperForConditionalGeneration

    @classmethod
    def build(cls, config: WhisperConfig, weights: Weights, positions: int) -> Self:
        """The model for windows of `positions` encoder positions."""
        cut = replace(config, max_source_positions=positions)
        plain = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
        settings = ReferenceConfig(**asdict(cut), **plain, decoder_start_token_id=0)
        settings._attn_implementation = "eager"
        model = WhisperForConditionalGeneration(settings).eval().float()
        table = "model.encoder.embed_positions.weight"
        state = {name: torch.from_numpy(array) for name, array in weights.items()}
        state[table] = state[table][:positions]
        state["proj_out.weight"] = state["model.decoder.embed_tokens.weight"]
        model.load_state_dict(state, strict=True)
        return cls(model)

    def encode(self, mel: NDArray[np.float32]) -> NDArray[np.float32]:
        """States (P, d_model) of mel (2 P, n_mels)."""
        with torch.inference_mode():
            states = self.model.model.encoder(torch.from_numpy(mel.T[None].copy()))
        found: NDArray[np.float32] = states.last_hidden_state[0].numpy()
        return found

    def write(
        self, states: NDArray[np.float32], prompt: Sequence[int], count: int
    ) -> tuple[NDArray[np.float32], list[int]]:
        """Logits (len(prompt) - 1 + count, vocabulary) and `count` greedy tokens, none suppressed.

        The tokens are found one by one with transformers' cache; the logits are those of one pass
        over all of them without it, and agree on the tokens.
        """
        heard = BaseModelOutput(last_hidden_state=torch.from_numpy(states[None].copy()))
        tokens: list[int] = []
        ids, cache = torch.tensor([[*prompt]]), None
        with torch.inference_mode():
            while len(tokens) < count:
                step = self.model(
                    encoder_outputs=heard,
                    decoder_input_ids=ids,
                    past_key_values=cache,
                    use_cache=True,
                )
                tokens.append(int(step.logits[0, -1].argmax()))
                ids, cache = torch.tensor([tokens[-1:]]), step.past_key_values
            ids = torch.tensor([[*prompt, *tokens[:-1]]])
            whole = self.model(encoder_outputs=heard, decoder_input_ids=ids, use_cache=False)
        logits = whole.logits[0].numpy()
        if logits[len(prompt) - 1 :].argmax(axis=-1).tolist() != tokens:
            raise ValueError("transformers disagrees with itself: the best two are too close")
        return logits, tokens
